// Whole runs: reports, files in the run folder, and how they end.
#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "support/catch.h"
#include "train/expect_error.h"
#include "train/tiny_run.h"

namespace {

namespace fs = std::filesystem;
using namespace dp;
using dp::test::expect_error;
using dp::test::lines_of;
using dp::test::read_text;
using dp::test::TemporaryFolder;
using dp::test::tiny_digits;
using dp::test::tiny_model;
using dp::test::tiny_options;
using dp::test::tiny_run;

TEST_CASE("a run learns and writes its record") {
  const TemporaryFolder temp;
  std::vector<double> test_losses;
  std::vector<StepReport> steps;
  std::vector<std::string> saved;
  TrainerCallbacks callbacks;
  callbacks.on_eval = [&](const EvalReport& report) {
    test_losses.push_back(report.stats.loss());
    CHECK(report.stats.samples == 130);  // every sample once
    CHECK(report.step == 7 * static_cast<std::int64_t>(test_losses.size()));
  };
  callbacks.on_step = [&](const StepReport& report) { steps.push_back(report); };
  callbacks.on_checkpoint = [&](const std::string& folder) { saved.push_back(fs::path(folder).filename()); };
  TrainerOptions options = tiny_options(temp / "run");
  options.summary_file = temp / "copy.json";
  const RunSummary summary = tiny_run(options, callbacks);

  REQUIRE(test_losses.size() == 3);
  CHECK(test_losses[2] < test_losses[0]);
  REQUIRE(steps.size() == 21);
  CHECK(steps[6].epoch_so_far.samples == 300);
  CHECK(steps[6].recent.samples == 12);
  CHECK(steps[7].epoch_so_far.samples == 48);
  CHECK(steps[7].epoch == 1);
  CHECK(steps[7].phases.size() == 2);
  CHECK(summary.train_loss == Approx(steps[20].epoch_so_far.loss()));
  CHECK(std::count(saved.begin(), saved.end(), "last") == 3);
  CHECK(saved.back() == "last");
  CHECK(std::count(saved.begin(), saved.end(), "best") >= 1);

  CHECK(summary.steps == 21);
  CHECK(summary.epochs == 3);
  CHECK(summary.devices == std::vector<std::string>{"cpu", "cpu"});
  CHECK(summary.images_per_second > 0);
  CHECK(summary.seconds_train > 0);
  CHECK_FALSE(summary.interrupted);
  CHECK(summary.skipped_steps == 0);
  CHECK(read_text(temp / "run/summary.json") == to_json(summary) + "\n");
  CHECK(read_text(temp / "copy.json") == to_json(summary) + "\n");

  const Checkpoint last = load_checkpoint(summary.checkpoint);
  CHECK(weights_sha256(last.weights) == summary.weights_sha256);
  CHECK(last.state.step == 21);
  CHECK(last.state.epoch == 3);
  CHECK(last.state.batch_in_epoch == 0);
  CHECK(last.state.model == "tiny");
  CHECK(last.state.best_top1 >= summary.top1);
  CHECK(last.optimizer.tensors.size() + 3 == last.weights.size());  // running statistics have no state
  CHECK(nlohmann::json::parse(last.state.config)["batch-size"] == 48);

  std::vector<std::string> kinds;
  for (const std::string& line : lines_of(read_text(temp / "run/metrics.jsonl")))
    kinds.push_back(nlohmann::json::parse(line)["kind"]);
  CHECK(std::count(kinds.begin(), kinds.end(), "train") == 21);
  CHECK(std::count(kinds.begin(), kinds.end(), "eval") == 3);
  CHECK(kinds[7] == "eval");
}

TEST_CASE("evaluating a checkpoint gives the run's own result") {
  const TemporaryFolder temp;
  const RunSummary trained = tiny_run(tiny_options(temp.path()));
  TrainerOptions options = tiny_options();
  options.resume = temp.path();
  options.parallel.seed = 7;  // other initial weights
  Trainer trainer(dp::test::tiny_model(), dp::test::tiny_digits(), options);
  const RunSummary result = trainer.evaluate();
  CHECK(result.top1 == trained.top1);
  CHECK(result.test_loss == Approx(trained.test_loss).epsilon(1e-12));
  CHECK(result.weights_sha256 == trained.weights_sha256);
  CHECK(result.steps == 21);

  const TemporaryFolder nothing;
  options.resume = "auto";
  options.output_dir = nothing.path();
  expect_error(ErrorCode::data, {nothing.path(), "no checkpoint"},
               [&] { Trainer(dp::test::tiny_model(), dp::test::tiny_digits(), options).evaluate(); });
}

TEST_CASE("the learning rate follows the schedule step by step") {
  std::vector<double> rates;
  std::vector<std::int64_t> batches;
  TrainerCallbacks callbacks;
  callbacks.on_step = [&](const StepReport& report) { rates.push_back(report.lr), batches.push_back(report.batches); };
  TrainerOptions options = tiny_options();
  options.max_steps = 10;  // the cosine schedule ends at step 10
  const RunSummary summary = tiny_run(options, callbacks);
  CHECK(summary.steps == 10);
  CHECK(summary.epochs == 1);
  CHECK(summary.top5 > 0);  // evaluated at the end
  REQUIRE(rates.size() == 10);
  CHECK(batches == std::vector<std::int64_t>{7, 7, 7, 7, 7, 7, 7, 3, 3, 3});  // to the end of the run
  for (int step = 0; step < 10; ++step)
    CHECK(rates[static_cast<std::size_t>(step)] == Approx(0.05 * 0.5 * (1 + std::cos(3.14159265358979 * step / 10))));
}

TEST_CASE("a dry run takes one batch of each kind and writes nothing") {
  const TemporaryFolder temp;
  TrainerOptions options = tiny_options(temp / "run");
  options.dry_run = true;
  std::int64_t evaluated = 0;
  TrainerCallbacks callbacks;
  callbacks.on_eval = [&](const EvalReport& report) { evaluated = report.stats.samples; };
  const RunSummary summary = tiny_run(options, callbacks);
  CHECK(summary.steps == 1);
  CHECK(evaluated == 128);
  CHECK_FALSE(fs::exists(temp / "run"));
}

TEST_CASE("a measured split is used, and recorded as what `auto` became") {
  const TemporaryFolder temp;
  TrainerOptions options = tiny_options(temp.path());
  options.parallel.deterministic = false;
  options.measure_split = true;
  Trainer trainer(tiny_model(), tiny_digits(), options);
  const std::vector<int> weights = trainer.net().options().split_weights;
  REQUIRE(weights.size() == 2);
  CHECK_FALSE(trainer.run().interrupted);
  const std::string config = test::read_text(temp / "config.toml");
  CHECK_THAT(config, Catch::Contains("\nsplit = \"auto\"\n"));
  CHECK_THAT(config, Catch::Contains(fmt::format("\nsplit = \"{}:{}\"\n", weights[0], weights[1])));
  options.output_dir.clear();
  options.parallel.deterministic = true;
  CHECK_THROWS_WITH(Trainer(tiny_model(), tiny_digits(), options), Catch::Contains("--split auto excludes"));
}

TEST_CASE("a folder holds one run") {
  const TemporaryFolder temp;
  TrainerCallbacks callbacks;
  int tried = 0;
  callbacks.on_start = [&](const DataParallel&, const TrainerOptions&) {
    ++tried;
    expect_error(ErrorCode::usage, {temp.path(), "another run"}, [&] { tiny_run(tiny_options(temp.path())); });
  };
  tiny_run(tiny_options(temp.path()), callbacks);
  CHECK(tried == 1);
  expect_error(ErrorCode::usage, {temp.path(), "already contains a run", "--resume auto"},
               [&] { tiny_run(tiny_options(temp.path())); });
}

TEST_CASE("invalid options are rejected at once") {
  const auto refused = [](const std::vector<std::string>& fragments, auto change) {
    TrainerOptions options = tiny_options();
    change(options);
    expect_error(ErrorCode::usage, fragments,
                 [&] { Trainer(dp::test::tiny_model(), dp::test::tiny_digits(), options); });
  };
  refused({"epochs", "0"}, [](TrainerOptions& o) { o.epochs = 0; });
  refused({"batch-size", "-1"}, [](TrainerOptions& o) { o.batch_size = -1; });
  refused({"lr is -1"}, [](TrainerOptions& o) { o.optimizer = Sgd{.lr = -1}; });
  refused({"lr is nan"}, [](TrainerOptions& o) { o.optimizer = Sgd{.lr = NAN}; });
  refused({"momentum"}, [](TrainerOptions& o) { o.optimizer = Sgd{.momentum = 1}; });
  refused({"--nesterov requires"}, [](TrainerOptions& o) { o.optimizer = Sgd{.nesterov = true}; });
  refused({"lr-step-size"}, [](TrainerOptions& o) { o.schedule = {.kind = ScheduleKind::step, .step_size = 0}; });
  refused({"--lr-milestones", "ascending"}, [](TrainerOptions& o) { o.schedule.milestones = {2, 1}; });
  refused({"print-freq is -1"}, [](TrainerOptions& o) { o.print_freq = -1; });
  refused({"give one"}, [](TrainerOptions& o) { o.init = "a", o.resume = "b"; });
  refused({"--init"}, [](TrainerOptions& o) { o.init_partial = true; });
  refused({"profile requires traced steps; set trace_steps"}, [](TrainerOptions& o) { o.profile = true; });
  const auto measured = [](TrainerOptions& o) { o.measure_split = true, o.parallel.deterministic = false; };
  refused({"--split auto excludes --deterministic and --logical-shards"},
          [&](TrainerOptions& o) { measured(o), o.parallel.logical_shards = 2; });
  refused({"measure_split excludes Split::chunk"},
          [&](TrainerOptions& o) { measured(o), o.parallel.split = Split::chunk; });
  const auto refused_data = [](const std::vector<std::string>& fragments, const DatasetPair& data) {
    expect_error(ErrorCode::usage, fragments, [&] { Trainer(dp::test::tiny_model(), data, tiny_options()); });
  };
  const auto& digits = dp::test::tiny_digits();
  refused_data({"the trainer requires a training set and a test set"}, {nullptr, digits.test});
  refused_data({"the trainer requires a training set and a test set"}, {digits.train, nullptr});
  refused_data({"model 'tiny' requires images of (1, 28, 28), but the data set's images are (1, 4, 4)"},
               {digits.train, datasets::synthetic({1, 4, 4}, 10, 20, 20).test});
  refused_data({"model 'tiny' outputs (10,), but the data set has 11 classes"},
               {digits.train, datasets::synthetic({1, 28, 28}, 11, 20, 20).test});
  expect_error(ErrorCode::usage, {"(1, 28, 28)", "(3, 8, 8)"}, [] {
    Trainer(models::mlp({.input = {3, 8, 8}}), dp::test::tiny_digits(), tiny_options());
  });
  expect_error(ErrorCode::usage, {"10 classes"},
               [] { Trainer(models::mlp({.classes = 9}), dp::test::tiny_digits(), tiny_options()); });
}

}  // namespace
