// The search for the checkpoint of a resumed run, and the errors for missing and incompatible ones.
#include <filesystem>

#include "engine/train/record/run_folder.h"
#include "engine/train/start.h"
#include "support/catch.h"
#include "train/expect_error.h"
#include "train/tiny_run.h"

namespace {

namespace fs = std::filesystem;
using namespace dp;
using dp::test::expect_error;
using dp::test::run_until;
using dp::test::TemporaryFolder;
using dp::test::tiny_options;
using dp::test::tiny_run;
using dp::test::write_text;

std::string found(const std::string& resume, const std::string& output_dir = "", bool locked = false) {
  TrainerOptions options;
  options.resume = resume, options.output_dir = output_dir;
  return find_resumed_folder(options, locked, {});
}

TEST_CASE("a path without a checkpoint is refused with the reason and the remedy") {
  const TemporaryFolder temp;
  const auto refused = [&](ErrorCode code, const std::string& resume, const std::string& text,
                           const std::string& output_dir = "") {
    expect_error(code, {text}, [&] { found(resume, output_dir); });
  };
  const std::string remedy = "give a checkpoint or run folder with --resume", path = temp / "x";
  refused(ErrorCode::usage, "auto", "--resume auto requires the run's folder; give it with --output-dir");
  refused(ErrorCode::data, path, "checkpoint '" + path + "' does not exist; " + remedy);
  write_text(path, "a file");
  refused(ErrorCode::data, path, "'" + path + "' is not a folder; " + remedy);
  fs::remove(path);
  fs::create_directories(path);
  refused(ErrorCode::data, path,
          "'" + path + "' contains neither manifest.json (a checkpoint) nor checkpoints/ (a run); " + remedy);
  CHECK(found("").empty());
  CHECK(found("auto", path).empty());
  fs::create_directories(path + "/checkpoints");
  refused(ErrorCode::data, path,
          "nothing was saved yet in '" + path +
              "' (a run that ends before its first save is complete leaves nothing); start it without --resume");
  CHECK(found("auto", path).empty());
  fs::create_directories(path + "/checkpoints/last");
  write_text(path + "/checkpoints/last/state.json", "damaged");
  refused(ErrorCode::data, "auto",
          "no checkpoint in '" + path + "/checkpoints' can be read: " + path +
              "/checkpoints/last/manifest.json: opening it failed: No such file or directory; give another with "
              "--resume, or choose another --output-dir",
          path);
}

TEST_CASE("in a folder locked by another run, the checkpoint `last` is read without repair") {
  const TemporaryFolder temp;
  const std::string run = temp / "run", last = run + "/checkpoints/last", best = run + "/checkpoints/best";
  run_until(tiny_options(run), 10);
  CHECK(found(run) == last);
  CHECK(found(last) == last);
  fs::resize_file(last + "/model.safetensors", 20);
  CHECK(found(run) == best);
  const FolderLock lock(run);
  REQUIRE(lock.held());
  CHECK(found(run) == last);
  CHECK(found("auto", run, /*locked=*/true) == best);  // this run holds the lock
  CHECK(found("auto", run) == last);
  fs::remove_all(last);
  expect_error(ErrorCode::data, {"has no checkpoint 'last' yet", "another run is writing"}, [&] { found(run); });
}

TEST_CASE("with logical shards a resumed run needs the same threads and the same type of sums") {
  const TemporaryFolder temp;
  const auto sharded = [&](const std::string& folder) {
    TrainerOptions options = tiny_options(folder);
    options.parallel.logical_shards = 2;
    return options;
  };
  run_until(sharded(temp / "run"), 2);
  const auto refused = [&](const std::string& text, auto change) {
    TrainerOptions options = sharded("");
    options.resume = temp / "run";
    change(options.parallel);
    expect_error(ErrorCode::usage,
                 {"checkpoint '" + temp / "run/checkpoints/last" + "' was made with " + text + ", or start a new run"},
                 [&] { tiny_run(options); });
  };
  refused("threads-per-replica 1, but this run uses 2; use threads-per-replica 1",
          [](DataParallelOptions& o) { o.threads_per_replica = 2; });
  refused("reduce-dtype float32, but this run uses bfloat16; use reduce-dtype float32",
          [](DataParallelOptions& o) { o.reduce_dtype = DType::bf16; });
  refused("logical-shards 2, but this run uses none; use logical-shards 2",
          [](DataParallelOptions& o) { o.logical_shards = 0; });
}

TEST_CASE("a checkpoint with other tensors than the model is refused, those of the optimizer and the average too") {
  const TemporaryFolder temp;
  TrainerOptions options = tiny_options();
  options.parallel.ema_decay = 0.5;
  DataParallel net(dp::test::tiny_model(), options.parallel);
  options.output_dir = temp / "run";
  run_until(options, 2);
  const Resumed good{"the folder", load_checkpoint(temp / "run/checkpoints/last")};
  const auto refused = [&](const std::string& fault, auto change) {
    Resumed changed = good;
    change(changed.checkpoint);
    expect_error(ErrorCode::data,
                 {"'the folder' does not fit the model: " + fault + "; resume with the model of the checkpoint"},
                 [&] { restore(net, changed); });
  };
  restore(net, good);
  CHECK(net.step_count() == 2);
  CHECK(net.average_updates() == 2);
  CHECK(weights_sha256(net.weights()) == weights_sha256(good.checkpoint.weights));
  CHECK(weights_sha256(net.average_weights()) == weights_sha256(good.checkpoint.average));
  CHECK(net.optimizer_state().updates == 2);
  CHECK(weights_sha256(net.optimizer_state().tensors) == weights_sha256(good.checkpoint.optimizer.tensors));
  refused("'fc.bias' is missing",
          [](Checkpoint& c) { std::erase_if(c.weights, [](const auto& one) { return one.first == "fc.bias"; }); });
  const std::string momentum = "momentum_buffer.fc.bias";
  refused("'" + momentum + "' is missing", [&](Checkpoint& c) {
    std::erase_if(c.optimizer.tensors, [&](const auto& one) { return one.first == momentum; });
  });
  refused("'fc.bias' is (3,), not (10,)", [](Checkpoint& c) {
    for (auto& [name, tensor] : c.average)
      if (name == "fc.bias") tensor = Tensor(Shape{3});
  });
}

TEST_CASE("a file of initial weights that is damaged is refused with the option that names it") {
  const TemporaryFolder temp;
  write_text(temp / "w", "no tensors");
  TrainerOptions options = tiny_options();
  options.init = temp / "w";
  expect_error(ErrorCode::data, {temp / "w", "; give weights in safetensors or of torch.save with --init"},
               [&] { tiny_run(options); });
  options.resume = temp / "run";
  expect_error(ErrorCode::usage,
               {"--init '" + temp / "w" + "' and --resume '" + temp / "run" + "' exclude each other; give one"},
               [&] { tiny_run(options); });
}

}  // namespace
