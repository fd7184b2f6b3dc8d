// What a run reports besides its steps: other work, epochs, notices, and evaluations without training.
#include <fmt/format.h>

#include <filesystem>

#include "support/catch.h"
#include "train/expect_error.h"
#include "train/tiny_run.h"

namespace {

using namespace dp;
using dp::test::expect_error;
using dp::test::read_text;
using dp::test::run_until;
using dp::test::TemporaryFolder;
using dp::test::tiny_digits;
using dp::test::tiny_model;
using dp::test::tiny_options;
using dp::test::tiny_run;

using Lines = std::vector<std::string>;

// A run's or an evaluation's reports of other work, as text.
TrainerCallbacks listing_work(Lines& lines) {
  TrainerCallbacks callbacks;
  callbacks.on_work = [&lines](const WorkReport& report) {
    lines.push_back(fmt::format("{} {}/{}", report.what, report.done, report.total));
  };
  return callbacks;
}

// The notices of a run, except that it waited for data, which depends on the load of the machine.
Lines notices(const TrainerOptions& options) {
  Lines said;
  TrainerCallbacks callbacks;
  callbacks.on_message = [&](const std::string& text) {
    if (!text.starts_with("training waited")) said.push_back(text);
  };
  tiny_run(options, callbacks);
  return said;
}

TEST_CASE("planning and each batch of an evaluation are reported as work") {
  Lines work;
  TrainerOptions options = tiny_options();
  options.epochs = 1;
  tiny_run(options, listing_work(work));
  const Lines planning{"Planning layers 0/0", "Planning layers 1/1"};
  Lines wanted = planning;
  wanted.insert(wanted.end(), {"Test 0/2", "Test 1/2", "Test 2/2"});  // 130 images in batches of 128
  CHECK(work == wanted);

  work.clear();
  Trainer(tiny_model(), tiny_digits(), options).evaluate(listing_work(work));
  CHECK(work == wanted);

  work.clear();
  options.batch_size = 129;
  options.dry_run = true;
  tiny_run(options, listing_work(work));
  wanted = planning;
  wanted.insert(wanted.end(), {"Test 0/1", "Test 1/1"});
  CHECK(work == wanted);

  work.clear();
  options.dry_run = false;
  options.batch_size = 130;
  Trainer(tiny_model(), tiny_digits(), options).evaluate(listing_work(work));
  CHECK(work == wanted);
}

TEST_CASE("a stopped evaluation reports its work as ended") {
  Lines work;
  std::atomic<int> stop{2};
  TrainerOptions options = tiny_options();
  options.stop = &stop;
  CHECK(Trainer(tiny_model(), tiny_digits(), options).evaluate(listing_work(work)).interrupted);
  CHECK(work == Lines{"Planning layers 0/0", "Planning layers 1/1", "Test 0/2"});

  work.clear();
  stop = 0;
  TrainerCallbacks callbacks = listing_work(work);
  callbacks.on_work = [&, list = callbacks.on_work](const WorkReport& report) {
    list(report);
    if (report.what == "Test") stop = 2;
  };
  CHECK(Trainer(tiny_model(), tiny_digits(), options).evaluate(callbacks).interrupted);
  CHECK(work == Lines{"Planning layers 0/0", "Planning layers 1/1", "Test 0/2", "Test 2/2"});
}

TEST_CASE("the report of an epoch has its steps' sums, its last rate, its time, and its evaluations") {
  TrainerOptions options = tiny_options();
  options.epochs = 2;
  options.eval_every = 2;
  options.parallel.ema_decay = 0.5;
  std::vector<StepReport> steps;
  std::vector<EvalReport> evaluations;
  std::vector<EpochReport> epochs;
  TrainerCallbacks callbacks;
  callbacks.on_step = [&](const StepReport& report) { steps.push_back(report); };
  callbacks.on_eval = [&](const EvalReport& report) { evaluations.push_back(report); };
  callbacks.on_epoch = [&](const EpochReport& report) { epochs.push_back(report); };
  const RunSummary summary = tiny_run(options, callbacks);
  REQUIRE(epochs.size() == 2);
  REQUIRE(evaluations.size() == 2);
  double seconds = 0;
  for (std::size_t i = 0; i < 2; ++i) {
    const EpochReport& epoch = epochs[i];
    const StepReport& last = steps[7 * i + 6];
    CHECK(epoch.epoch == static_cast<std::int64_t>(i));
    CHECK(epoch.step == last.step);
    CHECK(epoch.train.samples == 300);
    CHECK(epoch.train.loss_sum == last.epoch_so_far.loss_sum);
    CHECK(epoch.train.top1 == last.epoch_so_far.top1);
    CHECK(epoch.lr == last.lr);
    CHECK(epoch.seconds > 0);
    CHECK(epoch.images_per_second == Approx(300 / epoch.seconds));
    CHECK(epoch.loading_share >= 0);
    CHECK(epoch.loading_share <= 1);
    CHECK(epoch.test.has_value() == (i == 1));
    CHECK(epoch.average.has_value() == (i == 1));
    seconds += epoch.seconds;
  }
  CHECK(seconds <= summary.seconds_train + 1e-9);
  CHECK_FALSE(epochs[1].test->average);
  CHECK(epochs[1].average->average);
  for (const std::size_t i : {0, 1}) {
    const EvalReport& got = i == 0 ? *epochs[1].test : *epochs[1].average;
    CHECK(got.stats.loss_sum == evaluations[i].stats.loss_sum);
    CHECK(got.step == 14);
    CHECK(got.epoch == 1);
    CHECK(got.seconds > 0);
    CHECK_FALSE(got.alone);
  }
}

TEST_CASE("a run with no steps left only evaluates and reports this") {
  const TemporaryFolder temp;
  TrainerOptions options = tiny_options(temp.path());
  CHECK(notices(options).empty());
  options.resume = "auto";
  const Lines said = notices(options);
  CHECK(said == Lines{"resumed from '" + temp.path() + "/checkpoints/last' at step 21, epoch 3, batch 0",
                      "nothing is left to train: the run is at step 21, after 3 of 3 epochs"});
}

TEST_CASE("early stopping reports the number of evaluations without improvement") {
  TrainerOptions options = tiny_options();
  options.epochs = 9;
  options.patience = 1;
  options.optimizer = Sgd{.lr = 0};
  options.parallel.batch_norm = BatchNormMode::sync;
  const Lines said = notices(options);
  REQUIRE_FALSE(said.empty());
  CHECK(said.back() == "ended early: 1 evaluation without a higher top-1 (--patience)");
}

TEST_CASE("a timeline or profile that would begin after the last step is reported as empty") {
  const TemporaryFolder temp;
  TrainerOptions options = tiny_options();
  options.max_steps = 2;
  options.trace_file = temp / "trace.json";
  options.parallel.trace_first = 5, options.parallel.trace_steps = 1;
  const std::string end = ": the run ended before step 5, the first of --trace-steps";
  CHECK(notices(options) == Lines{"'" + temp / "trace.json" + "' contains no step" + end});
  CHECK(std::filesystem::exists(temp / "trace.json"));
  options.trace_file.clear();
  options.profile = true;
  CHECK(notices(options) == Lines{"the profile contains no step" + end});
  options.parallel.trace_first = 0;
  CHECK(notices(options).empty());
}

TEST_CASE("an evaluation reports its file of weights, its result alone, and writes the summary asked for") {
  const TemporaryFolder temp;
  write_safetensors(temp / "w.safetensors", DataParallel(tiny_model(), tiny_options().parallel).weights());
  TrainerOptions options = tiny_options(temp / "run");
  options.init = temp / "w.safetensors";
  options.summary_file = temp / "summary.json";
  std::vector<EvalReport> reports;
  int started = 0;
  TrainerCallbacks callbacks;
  callbacks.on_start = [&](const DataParallel&, const TrainerOptions& chosen) { started += chosen.batch_size == 48; };
  callbacks.on_eval = [&](const EvalReport& report) { reports.push_back(report); };
  const RunSummary summary = Trainer(tiny_model(), tiny_digits(), options).evaluate(callbacks);
  CHECK(started == 1);
  REQUIRE(reports.size() == 1);
  CHECK(reports[0].alone);
  CHECK(reports[0].stats.samples == 130);
  CHECK(summary.checkpoint == options.init);
  CHECK(summary.steps == 0);
  CHECK(summary.top1 == reports[0].stats.accuracy1());
  CHECK(summary.top5 == reports[0].stats.accuracy5());
  CHECK(summary.test_loss == reports[0].stats.loss());
  CHECK(summary.classes == 10);
  CHECK_FALSE(summary.interrupted);
  CHECK(read_text(temp / "summary.json") == to_json(summary) + "\n");
  CHECK_FALSE(std::filesystem::exists(temp / "run"));
  options.dry_run = true;
  Trainer(tiny_model(), tiny_digits(), options).evaluate(callbacks);
  CHECK(reports.back().stats.samples == 128);
  options.summary_file = temp / "none/summary.json";
  expect_error(ErrorCode::io, {"none/summary.json"}, [&] { Trainer(tiny_model(), tiny_digits(), options).evaluate(); });
}

TEST_CASE("an evaluation has the epoch of its checkpoint, and --resume requires a checkpoint") {
  const TemporaryFolder temp;
  run_until(tiny_options(temp / "run"), 10);
  TrainerOptions options = tiny_options();
  options.optimizer = AdamW{};  // an evaluation needs no state of the optimizer
  options.resume = temp / "run";
  const RunSummary summary = Trainer(tiny_model(), tiny_digits(), options).evaluate();
  CHECK(summary.steps == 10);
  CHECK(summary.epochs == 1);
  CHECK(summary.checkpoint == temp / "run/checkpoints/last");
  options.resume = "auto";
  options.output_dir = temp / "empty";
  expect_error(ErrorCode::data,
               {"there is no checkpoint in '" + temp / "empty" + "' to evaluate; give one with --resume"},
               [&] { Trainer(tiny_model(), tiny_digits(), options).evaluate(); });
}

TEST_CASE("a trainer runs once") {
  TrainerOptions options = tiny_options();
  options.max_steps = 1;
  Trainer trainer(tiny_model(), tiny_digits(), options);
  trainer.run();
  expect_error(ErrorCode::usage, {"a trainer runs only once; create another"}, [&] { trainer.run(); });
}

TEST_CASE("a checkpoint beyond the end of this run's epoch is refused") {
  const TemporaryFolder temp;
  run_until(tiny_options(temp / "run"), 7);  // after the last of 7 batches, before the evaluation
  TrainerOptions options = tiny_options();
  options.resume = temp / "run";
  expect_error(ErrorCode::usage,
               {"is at batch 7, but an epoch of this run has 6 batches; resume with the same data set and the same "
                "setting of --drop-last"},
               [&] { Trainer(tiny_model(), datasets::digits(288, 130), options).run(); });
}

TEST_CASE("drop_last ends an epoch before its incomplete batch, also after a resume with another batch size") {
  const TemporaryFolder temp;
  TrainerOptions options = tiny_options(temp.path());
  options.drop_last = true;  // 6 batches of 48, 12 left
  run_until(options, 6);
  options.resume = "auto";
  options.batch_size = 50;  // 6 batches
  CHECK(tiny_run(options).steps == 6 + 2 * 6);
}

TEST_CASE("a change of devices is a notice and part of the history") {
  const TemporaryFolder temp;
  TrainerOptions options = tiny_options(temp.path());
  run_until(options, 2);
  options.resume = "auto";
  options.parallel.devices = cpus(1);
  options.max_steps = 3;
  options.given_by = {{"max-steps", "command line"}};
  const std::string step = "' at step 2, epoch 0, batch 2";
  CHECK(notices(options) ==
        Lines{"resumed from '" + temp.path() + "/checkpoints/last" + step, "max-steps none -> 3 (command line)",
              "devices changed from cpu, cpu to cpu: rounding may differ; name the same devices for the same bits"});
  CHECK_THAT(read_text(temp / "metrics.jsonl"),
             Catch::Contains("{\"kind\":\"resumed\",\"epoch\":0,\"step\":2,\"from\":\"" + temp.path() +
                             "/checkpoints/last\",\"changes\":[{\"option\":\"max-steps\",\"before\":null,\"now\":3,"
                             "\"by\":\"command line\"},{\"option\":\"devices\",\"before\":\"cpu, cpu\","
                             "\"now\":\"cpu\"}]}"));
}

}  // namespace
