// A stopped and resumed run equals an uninterrupted run.
#include <chrono>
#include <filesystem>
#include <thread>

#include "support/catch.h"
#include "support/optimizers.h"
#include "support/tensor_errors.h"
#include "train/expect_error.h"
#include "train/tiny_run.h"

namespace {

namespace fs = std::filesystem;
using namespace dp;
using dp::test::expect_error;
using dp::test::kTinyBatches;
using dp::test::lines_of;
using dp::test::read_text;
using dp::test::run_until;
using dp::test::TemporaryFolder;
using dp::test::tiny_digits;
using dp::test::tiny_model;
using dp::test::tiny_options;
using dp::test::tiny_run;

const RunSummary& uninterrupted() {
  static const RunSummary summary = tiny_run(tiny_options());
  return summary;
}

TEST_CASE("a resumed run equals the uninterrupted one bit for bit") {
  for (const std::int64_t step : {1, 5, 6, 7, 8, 14, 20}) {  // 7, 14: after an epoch's last step, before its evaluation
    INFO("stopped after step " << step);
    const TemporaryFolder temp;
    TrainerOptions options = tiny_options(temp.path());
    const RunSummary first = run_until(options, step);
    CHECK(first.interrupted);
    CHECK(first.steps == step);
    CHECK(load_checkpoint(temp / "checkpoints/last").state.step == step);

    options.resume = "auto";
    int evaluations = 0;
    TrainerCallbacks callbacks;
    callbacks.on_eval = [&](const EvalReport&) { ++evaluations; };
    const RunSummary second = tiny_run(options, callbacks);
    CHECK(second.weights_sha256 == uninterrupted().weights_sha256);
    CHECK(second.top1 == uninterrupted().top1);
    CHECK(second.test_loss == uninterrupted().test_loss);
    CHECK(second.steps == 21);
    CHECK(evaluations == 3 - static_cast<int>((step - 1) / 7));
    CHECK(read_text(temp / "summary.json") == to_json(second) + "\n");
    CHECK_FALSE(second.interrupted);
    std::size_t train_lines = 0;
    for (const std::string& line : lines_of(read_text(temp / "metrics.jsonl")))
      train_lines += line.find("\"train\"") != std::string::npos;
    CHECK(train_lines == 21);
  }
}

TEST_CASE("a run with any optimizer and a moving average resumes bit for bit") {
  for (const Optimizer& optimizer : dp::test::optimizers_with_state()) {
    INFO(name_of(optimizer));
    const TemporaryFolder temp;
    const auto options_in = [&](const std::string& folder) {
      TrainerOptions options = tiny_options(temp / folder);
      options.optimizer = optimizer;
      options.parallel.ema_decay = 0.9;
      return options;
    };
    const RunSummary whole = tiny_run(options_in("whole"));
    CHECK(run_until(options_in("begun"), 5).interrupted);
    TrainerOptions resumed = options_in("begun");
    resumed.resume = "auto";
    CHECK(tiny_run(resumed).weights_sha256 == whole.weights_sha256);
    const Checkpoint one = load_checkpoint(temp / "whole/checkpoints/last"),
                     other = load_checkpoint(temp / "begun/checkpoints/last");
    CHECK(!one.optimizer.tensors.empty());
    CHECK(dp::test::bit_equal(one.optimizer.tensors, other.optimizer.tensors));
    CHECK(dp::test::bit_equal(one.average, other.average));
  }
}

TEST_CASE("a float16 run resumes with its loss scale, after overflows and growth alike") {
  const auto options_in = [](const std::string& folder) {
    TrainerOptions options = tiny_options(folder);
    options.parallel.devices = {Device{DeviceKind::reference, 0}, Device{DeviceKind::reference, 0}};
    options.parallel.amp = Amp::float16;
    options.parallel.loss_scale.initial = 0x1p25f;  // overflows at first
    options.parallel.loss_scale.growth_interval = 5;
    return options;
  };
  const TemporaryFolder straight;
  const RunSummary whole = tiny_run(options_in(straight.path()));
  const auto end = load_checkpoint(straight / "checkpoints/last").state.loss_scale;
  REQUIRE(end.has_value());
  const auto records = lines_of(read_text(straight / "metrics.jsonl"));
  CHECK(records.front().find("\"skipped\":1,\"loss_scale\":16777216.0") != std::string::npos);
  for (const std::int64_t step : {2, 9}) {
    const TemporaryFolder temp;
    TrainerOptions options = options_in(temp.path());
    run_until(options, step);
    const auto stopped = load_checkpoint(temp / "checkpoints/last").state.loss_scale;
    REQUIRE(stopped.has_value());
    CHECK(stopped->scale != 0x1p25f);
    options.resume = "auto";
    CHECK(tiny_run(options).weights_sha256 == whole.weights_sha256);
    const auto resumed = load_checkpoint(temp / "checkpoints/last").state.loss_scale;
    CHECK(resumed->scale == end->scale);
    CHECK(resumed->good_steps == end->good_steps);
  }
}

TEST_CASE("a moving average that a resumed run drops or starts anew is reported") {
  const TemporaryFolder temp;
  TrainerOptions plain = tiny_options(temp / "plain"), averaged = tiny_options(temp / "kept");
  averaged.parallel.ema_decay = 0.9;
  run_until(plain, 2), run_until(averaged, 2);
  const auto said = [](TrainerOptions options, const std::string& from) {
    options.resume = from;
    options.output_dir.clear();
    std::string all;
    TrainerCallbacks callbacks;
    callbacks.on_message = [&](const std::string& text) { all += text + "\n"; };
    tiny_run(options, callbacks);
    return all;
  };
  CHECK(said(plain, temp / "kept").find("the checkpoint's moving average is ignored") != std::string::npos);
  CHECK(said(averaged, temp / "plain").find("the checkpoint has no moving average") != std::string::npos);
  CHECK(said(averaged, temp / "kept").find("average") == std::string::npos);
}

TEST_CASE("a run resumed from an earlier checkpoint sets the later ones aside") {
  const TemporaryFolder temp;
  TrainerOptions options = tiny_options(temp.path());
  options.save_every_steps = 2;
  options.checkpoint_hist = 6;
  run_until(options, 10);
  options.resume = temp / "checkpoints/step-6";
  run_until(options, 7);
  CHECK(load_checkpoint(temp / "checkpoints/last").state.step == 7);
  CHECK(fs::exists(temp / "checkpoints/step-6"));
  for (const char* later : {"step-8", "step-10"}) {
    CHECK_FALSE(fs::exists(temp / ("checkpoints/" + std::string(later))));
    CHECK(load_checkpoint(temp / ("checkpoints/rewound-" + std::string(later))).state.step > 7);
  }
  options.resume = "auto";
  CHECK(tiny_run(options).weights_sha256 == uninterrupted().weights_sha256);
}

TEST_CASE("checkpoints within an epoch can be resumed, also in another folder") {
  const TemporaryFolder temp;
  TrainerOptions options = tiny_options(temp / "a");
  options.save_every_steps = 4;
  options.save_every_epochs = 0;
  TrainerCallbacks callbacks;
  callbacks.on_checkpoint = [&](const std::string& folder) {
    if (fs::path(folder).filename() == "last" && load_checkpoint(folder).state.step == 12)
      fs::copy(folder, temp / "kept", fs::copy_options::recursive);
  };
  CHECK(tiny_run(options, callbacks).weights_sha256 == uninterrupted().weights_sha256);

  TrainerOptions again = tiny_options(temp / "b");
  again.resume = temp / "kept";
  std::string said;
  TrainerCallbacks listening;
  listening.on_message = [&](const std::string& text) { said += text; };
  CHECK(tiny_run(again, listening).weights_sha256 == uninterrupted().weights_sha256);
  CHECK(said.find("step 12, epoch 1, batch 5") != std::string::npos);
}

TEST_CASE("a run saved on two replicas resumes on one, three and four, to a millionth of the distance moved") {
  const Model model = models::mlp({.hidden = {24}});  // no layer depends on the sharding
  struct End {
    NamedTensors origin, weights;
    std::int64_t steps;
  };
  const auto run = [&](TrainerOptions options, std::int64_t stop_after) {
    std::atomic<int> stop{0};
    options.stop = &stop;
    TrainerCallbacks callbacks;
    callbacks.on_step = [&](const StepReport& report) { stop = report.step == stop_after ? 2 : stop.load(); };
    Trainer trainer(model, tiny_digits(), options);
    End end{trainer.net().weights(), {}, 0};
    end.steps = trainer.run(callbacks).steps;
    end.weights = trainer.net().weights();
    return end;
  };
  const TemporaryFolder temp;
  const End stopped = run(tiny_options(temp / "run"), 10), wanted = run(tiny_options(), 0);
  CHECK(stopped.steps == 10);
  for (const int replicas : {1, 3, 4}) {
    TrainerOptions options = tiny_options();
    options.parallel.devices = cpus(replicas);
    options.resume = temp / "run/checkpoints/last";
    const End got = run(options, 0);
    const dp::test::Worst way = dp::test::worst_error(got.weights, wanted.weights, &wanted.origin);
    INFO(replicas << " replicas, " << way.name);
    CHECK(got.steps == 21);
    CHECK(way.error <= 1e-6);  // measured 8e-8
  }
}

TEST_CASE("resume auto starts a new run in an empty folder and resumes an existing one") {
  const TemporaryFolder temp;
  TrainerOptions options = tiny_options(temp / "run");
  options.resume = "auto";
  CHECK(run_until(options, 3).steps == 3);
  CHECK(run_until(options, 9).steps == 9);
  CHECK(tiny_run(options).weights_sha256 == uninterrupted().weights_sha256);
  const RunSummary done = tiny_run(options);  // training is already complete
  CHECK(done.steps == 21);
  CHECK(done.weights_sha256 == uninterrupted().weights_sha256);
  CHECK(done.top1 == uninterrupted().top1);
}

TEST_CASE("a run stopped before its first step can be resumed") {
  const TemporaryFolder temp;
  std::atomic<int> stop{15};
  TrainerOptions options = tiny_options(temp.path());
  options.stop = &stop;
  CHECK(tiny_run(options).interrupted);
  options.stop = nullptr;
  options.resume = "auto";
  CHECK(tiny_run(options).weights_sha256 == uninterrupted().weights_sha256);
}

// Reading a sample with index `from` or higher takes `slow` milliseconds.
class SlowPart final : public Dataset {
 public:
  SlowPart(std::shared_ptr<const Dataset> of, std::int64_t from) : of_(std::move(of)), from_(from) {}
  std::int64_t size() const override { return of_->size(); }
  Shape image_shape() const override { return of_->image_shape(); }
  std::int64_t classes() const override { return of_->classes(); }
  const Normalization& normalization() const override { return of_->normalization(); }
  std::int32_t label(std::int64_t index) const override { return of_->label(index); }
  void read(std::int64_t index, std::span<std::uint8_t> out, Random* random) const override {
    if (index >= from_) {
      while (waits_for && *waits_for == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      std::this_thread::sleep_for(std::chrono::milliseconds(slow.load()));
    }
    of_->read(index, out, random);
  }
  std::atomic<int> slow{1000};                  // milliseconds
  const std::atomic<int>* waits_for = nullptr;  // no read ends before this is set

 private:
  std::shared_ptr<const Dataset> of_;
  std::int64_t from_;
};

TEST_CASE("a stop ends the wait for a batch, and the run resumes after the finished steps") {
  const TemporaryFolder temp;
  const auto slow = std::make_shared<SlowPart>(tiny_digits().train, 3 * 48);
  const DatasetPair data{slow, tiny_digits().test};
  std::atomic<int> stop{0};
  std::atomic<bool> unsaved{false};
  bool while_training = false;
  TrainerOptions options = tiny_options(temp.path());
  options.shuffle = false;
  options.stop = &stop;
  options.unsaved = &unsaved;
  slow->waits_for = &stop;
  TrainerCallbacks callbacks;
  callbacks.on_start = [&](const DataParallel&, const TrainerOptions&) { CHECK_FALSE(unsaved.load()); };
  std::thread stopper;
  callbacks.on_step = [&](const StepReport& report) {
    while_training = unsaved;
    if (report.step == 3)
      stopper = std::thread([&] {  // during the wait for the fourth batch, which takes 48 s more
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
        stop = 2;
      });
  };
  const RunSummary cut = Trainer(tiny_model(), data, options).run(callbacks);
  stopper.join();
  CHECK(cut.interrupted);
  CHECK(while_training);
  CHECK_FALSE(unsaved.load());
  CHECK(load_checkpoint(temp / "checkpoints/last").state.step == 3);

  options.resume = "auto";
  options.stop = nullptr;
  slow->slow = 0;
  TrainerOptions whole = tiny_options();
  whole.shuffle = false;
  CHECK(Trainer(tiny_model(), data, options).run().weights_sha256 == tiny_run(whole).weights_sha256);
}

TEST_CASE("a stop during an evaluation leaves the evaluation to the resumed run") {
  const TemporaryFolder temp;
  std::atomic<int> stop{0};
  TrainerOptions options = tiny_options(temp.path());
  options.stop = &stop;
  std::vector<std::int64_t> evaluated;
  TrainerCallbacks callbacks;
  callbacks.on_eval = [&](const EvalReport& report) { evaluated.push_back(report.step); };
  callbacks.on_work = [&](const WorkReport& report) {
    if (report.what == "Test" && report.done == 1) stop = 2;
  };
  CHECK(tiny_run(options, callbacks).interrupted);
  CHECK(evaluated.empty());
  CHECK(load_checkpoint(temp / "checkpoints/last").state.step == kTinyBatches);
  options.stop = nullptr;
  options.resume = "auto";
  callbacks.on_work = nullptr;
  const RunSummary resumed = tiny_run(options, callbacks);
  CHECK(evaluated == std::vector<std::int64_t>{kTinyBatches, 2 * kTinyBatches, 3 * kTinyBatches});
  CHECK(resumed.weights_sha256 == tiny_run(tiny_options()).weights_sha256);
}

TEST_CASE("a stop after the last evaluation does not interrupt a complete run") {
  const TemporaryFolder temp;
  std::atomic<int> stop{0};
  TrainerOptions options = tiny_options(temp.path());
  options.max_steps = 7;
  options.stop = &stop;
  TrainerCallbacks callbacks;
  callbacks.on_eval = [&](const EvalReport&) { stop = 2; };  // too late: training is complete
  CHECK_FALSE(tiny_run(options, callbacks).interrupted);
}

TEST_CASE("options that a checkpoint lacks, or stores as another type, are not compared") {
  const TemporaryFolder temp;
  run_until(tiny_options(temp / "run"), 2);
  for (const char* config : {"{}", R"({"no-shuffle": "yes", "drop-last": null})"}) {
    Checkpoint checkpoint = load_checkpoint(temp / "run/checkpoints/last");
    checkpoint.state.config = config;
    save_checkpoint(temp / "run/checkpoints/last", checkpoint);
    TrainerOptions options = tiny_options();
    options.resume = temp / "run";
    CHECK(tiny_run(options).weights_sha256 == tiny_run(tiny_options()).weights_sha256);
  }
}

TEST_CASE("another model, data set or seed is rejected with both values named") {
  const TemporaryFolder temp;
  run_until(tiny_options(temp / "run"), 2);
  const auto refused = [&](const std::vector<std::string>& fragments, auto change) {
    TrainerOptions options = tiny_options();
    options.resume = temp / "run";
    change(options);
    expect_error(ErrorCode::usage, fragments, [&] { tiny_run(options); });
  };
  refused({"data set", "digits", "mnist"}, [](TrainerOptions& o) { o.dataset_name = "mnist"; });
  refused({"seed", "42", "43"}, [](TrainerOptions& o) { o.parallel.seed = 43; });
  refused({"no-shuffle off", "this run uses on"}, [](TrainerOptions& o) { o.shuffle = false; });
  refused({"no-augment off", "this run uses on"}, [](TrainerOptions& o) { o.augment = false; });
  refused({"flip not set", "this run uses alternating"},
          [](TrainerOptions& o) { o.augmentation.flip = Flip::alternating; });
  refused({"color-jitter not set", "this run uses 0.4"}, [](TrainerOptions& o) {
    o.augmentation.color_jitter = ColorJitter{0.4f, 0.4f, 0.4f, 0};
  });
  refused({"optimizer sgd", "this run uses adamw"}, [](TrainerOptions& o) { o.optimizer = AdamW{}; });
  refused({"bn master", "this run uses sync"}, [](TrainerOptions& o) { o.parallel.batch_norm = BatchNormMode::sync; });
  refused({"logical-shards none", "this run uses 4"}, [](TrainerOptions& o) { o.parallel.logical_shards = 4; });
  refused({"drop-last off", "this run uses on"}, [](TrainerOptions& o) { o.drop_last = true; });
  refused({"balanced-sampling off", "this run uses on"}, [](TrainerOptions& o) { o.balanced_sampling = true; });
  refused({"ra-reps 1", "this run uses 2"}, [](TrainerOptions& o) { o.repeats = 2; });
  TrainerOptions options = tiny_options();
  options.resume = temp / "run";
  ModelBuilder other("other", {1, 28, 28});
  const Model model = other.build(other.linear("fc", other.flatten(other.input()), {.out_features = 10}));
  expect_error(ErrorCode::usage, {"model", "tiny", "other"},
               [&] { Trainer(model, dp::test::tiny_digits(), options).run(); });
}

TEST_CASE("an unreadable newest checkpoint is named with the one used instead") {
  for (const char* file : {"model.safetensors", "state.json"}) {
    INFO(file);
    const TemporaryFolder temp;
    run_until(tiny_options(temp / "run"), 10);  // `best` from the first epoch, `last` from step 10
    const std::string last = temp / "run/checkpoints/last", best = temp / "run/checkpoints/best";
    fs::resize_file(last + "/" + file, 20);
    for (const char* resume : {"auto", "run"}) {
      TrainerOptions options = tiny_options(temp / "run");
      options.max_steps = 1;
      options.resume = resume == std::string("auto") ? "auto" : temp / "run";
      if (options.resume != "auto") options.output_dir = "";
      std::vector<std::string> said;
      TrainerCallbacks callbacks;
      callbacks.on_start = [](const DataParallel&, const TrainerOptions&) { throw std::runtime_error("enough"); };
      callbacks.on_message = [&](const std::string& text) { said.push_back(text); };
      CHECK_THROWS_WITH(tiny_run(options, callbacks), "enough");
      REQUIRE(said.size() == 3);
      CHECK_THAT(said[0], Catch::Contains("'" + last + "' cannot be read") && Catch::Contains(file) &&
                              Catch::Contains("is skipped") && Catch::Contains("using '" + best + "'"));
      CHECK_THAT(said[1], Catch::Contains("resumed from '" + best + "'"));
      CHECK(said[2] == "max-steps none -> 1");
    }
  }
}

TEST_CASE("a path that cannot be resumed is named") {
  const TemporaryFolder temp;
  const auto refused = [&](ErrorCode code, const std::string& resume, const std::string& fragment) {
    TrainerOptions options = tiny_options();
    options.resume = resume;
    expect_error(code, {fragment}, [&] { tiny_run(options); });
  };
  refused(ErrorCode::data, temp / "none", temp / "none");
  refused(ErrorCode::usage, "auto", "--output-dir");
  fs::create_directories(temp / "empty/checkpoints");
  refused(ErrorCode::data, temp / "empty", temp / "empty");
  fs::create_directories(temp / "bare");
  refused(ErrorCode::data, temp / "bare", temp / "bare");

  TrainerOptions broken = tiny_options(temp / "broken");
  run_until(broken, 2);
  fs::resize_file(temp / "broken/checkpoints/last/model.safetensors", 100);
  broken.resume = "auto";
  expect_error(ErrorCode::data, {temp / "broken", "can be read"}, [&] { tiny_run(broken); });
}

}  // namespace
