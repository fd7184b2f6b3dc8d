// Errors that leave the weights intact end a run like a signal: its finished steps are saved.
#include <filesystem>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "support/catch.h"
#include "support/failing.h"
#include "support/spoiled_dataset.h"
#include "train/expect_error.h"
#include "train/tiny_run.h"

namespace {

namespace fs = std::filesystem;
using namespace dp;
using dp::test::expect_error;
using dp::test::FailEnvironment;
using dp::test::kTinyBatches;
using dp::test::read_text;
using dp::test::SpoiledDataset;
using dp::test::TemporaryFolder;
using dp::test::tiny_digits;
using dp::test::tiny_model;
using dp::test::tiny_options;
using dp::test::tiny_run;

struct Broken : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The sample at this place of an epoch's order.
std::int64_t sample_at(std::int64_t epoch, std::int64_t place) {
  Loader loader(tiny_digits().train, {.batch_size = 48});
  return loader.order(epoch)[static_cast<std::size_t>(place)];
}

RunSummary run_on(const DatasetPair& data, const TrainerOptions& options, const TrainerCallbacks& callbacks = {}) {
  return Trainer(tiny_model(), data, options).run(callbacks);
}

nlohmann::json summary_in(const TemporaryFolder& temp) {
  return nlohmann::json::parse(read_text(temp / "summary.json"));
}

bool has_checkpoint(const TemporaryFolder& temp) { return fs::exists(temp / "checkpoints/last"); }

// Checks what the failed run in `temp` left, and that it continues to the bits of a run without the failure.
void check_kept(const TemporaryFolder& temp, TrainerOptions options, std::int64_t steps, const std::string& failure) {
  CHECK(load_checkpoint(temp / "checkpoints/last").state.step == steps);
  const auto summary = summary_in(temp);
  CHECK(summary["steps"] == steps);
  CHECK(summary["interrupted"] == true);
  CHECK(summary["end"] == "error: " + failure);
  CHECK(read_text(temp / "env.json").find(failure) != std::string::npos);
  options.resume = "auto";
  const RunSummary resumed = tiny_run(options);
  options.output_dir.clear(), options.resume.clear();
  CHECK(resumed.weights_sha256 == tiny_run(options).weights_sha256);
}

const std::string kFault = SpoiledDataset::kFault;

TEST_CASE("a sample that cannot be read ends the run with its finished steps saved") {
  for (const std::int64_t batch : {0, 1, 5, 6})
    for (const int layout : {1, 2, 3}) {
      INFO("batch " << batch << ", layout " << layout);
      const TemporaryFolder temp;
      TrainerOptions options = tiny_options(temp.path());
      options.save_every_epochs = 0;
      options.workers = layout;
      options.parallel.devices = cpus(layout == 1 ? 1 : 2);
      if (layout == 3) options.parallel.pipeline.stages = 2, options.parallel.pipeline.micro_batches = 2;
      const SpoiledDataset train(tiny_digits().train, sample_at(0, batch * 48 + 3));
      std::string said;
      TrainerCallbacks callbacks;
      callbacks.on_message = [&](const std::string& text) { said += text + "\n"; };
      expect_error(ErrorCode::data, {kFault}, [&] {
        run_on({std::make_shared<SpoiledDataset>(train), tiny_digits().test}, options, callbacks);
      });
      CHECK(has_checkpoint(temp) == (batch > 0));
      if (batch == 0) continue;
      CHECK(said.find("the finished steps are saved at step " + std::to_string(batch)) != std::string::npos);
      check_kept(temp, options, batch, kFault);
    }
}

TEST_CASE("a test sample that cannot be read ends the run with its finished steps saved") {
  for (const std::int64_t sample : {0, 129})
    for (const bool average : {false, true}) {
      INFO("sample " << sample << (average ? ", with an average" : ""));
      const TemporaryFolder temp;
      TrainerOptions options = tiny_options(temp.path());
      options.save_every_epochs = 0;
      if (average) options.parallel.ema_decay = 0.9;
      expect_error(ErrorCode::data, {kFault}, [&] {
        run_on({tiny_digits().train, std::make_shared<SpoiledDataset>(tiny_digits().test, sample)}, options);
      });
      check_kept(temp, options, kTinyBatches, kFault);
    }
}

TEST_CASE("a test sample that cannot be read is an error of a lone evaluation") {
  TrainerOptions options = tiny_options();
  Trainer trainer(tiny_model(), {tiny_digits().train, std::make_shared<SpoiledDataset>(tiny_digits().test, 5)},
                  options);
  expect_error(ErrorCode::data, {kFault}, [&] { trainer.evaluate(); });
}

TEST_CASE("an exception of any callback is rethrown as it is, after the finished steps are saved") {
  for (const char* where : {"step", "eval", "average", "epoch", "work", "checkpoint"}) {
    INFO(where);
    const TemporaryFolder temp;
    TrainerOptions options = tiny_options(temp.path());
    options.sync_checkpoints = true;  // on_checkpoint is called at a certain step
    options.parallel.ema_decay = 0.9;
    const std::string wanted = where;
    bool trained = false;
    const auto fail = [&](const std::string& here, bool now) {
      if (here == wanted && now) throw Broken("the embedder is broken");
    };
    TrainerCallbacks callbacks;
    callbacks.on_step = [&](const StepReport& report) {
      trained = true;
      fail("step", report.step == 4);
    };
    callbacks.on_eval = [&](const EvalReport& report) { fail(report.average ? "average" : "eval", report.epoch == 1); };
    callbacks.on_epoch = [&](const EpochReport&) { fail("epoch", true); };
    callbacks.on_work = [&](const WorkReport&) { fail("work", trained); };
    callbacks.on_checkpoint = [&](const std::string&) { fail("checkpoint", true); };
    CHECK_THROWS_AS(tiny_run(options, callbacks), Broken);
    const bool second = wanted == "eval" || wanted == "average";
    check_kept(temp, options,
               wanted == "step" ? 4
               : second         ? 2 * kTinyBatches
                                : kTinyBatches,
               "the embedder is broken");
  }
}

TEST_CASE("a failure of a replica saves nothing, because the weights may be of half a step") {
  const TemporaryFolder temp;
  const FailEnvironment thrown("throw:backward:dev1:step4");
  CHECK_THROWS_AS(tiny_run(tiny_options(temp.path())), Error);
  CHECK_FALSE(has_checkpoint(temp));
  CHECK_FALSE(fs::exists(temp / "summary.json"));
}

TEST_CASE("a data error after a full disk is reported, and the last checkpoint stays") {
  const TemporaryFolder temp;
  TrainerOptions options = tiny_options(temp.path());
  options.save_every_steps = 2;
  options.sync_checkpoints = true;  // the checkpoint of step 4 is there at step 5
  TrainerCallbacks callbacks;
  callbacks.on_step = [&](const StepReport& report) {
    if (report.step != 5) return;
    fs::rename(temp / "checkpoints", temp / "moved");
    test::write_text(temp / "checkpoints", "");  // a file, so that no checkpoint can be written
  };
  const std::int64_t spoiled = sample_at(0, 6 * 48 + 3);
  expect_error(ErrorCode::data, {kFault}, [&] {
    run_on({std::make_shared<SpoiledDataset>(tiny_digits().train, spoiled), tiny_digits().test}, options, callbacks);
  });
  CHECK(load_checkpoint(temp / "moved/last").state.step == 4);
}

}  // namespace
