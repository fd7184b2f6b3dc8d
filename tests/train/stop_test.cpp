// Runs that TrainerOptions::stop ends: what they leave on disk.
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "support/catch.h"
#include "train/tiny_run.h"

namespace {

namespace fs = std::filesystem;
using namespace dp;
using dp::test::read_text;
using dp::test::TemporaryFolder;
using dp::test::tiny_options;
using dp::test::tiny_run;

nlohmann::json parsed(const std::string& file) { return nlohmann::json::parse(read_text(file)); }

TEST_CASE("a run that stops early at its accuracy leaves a summary of its steps") {
  const TemporaryFolder temp;
  std::atomic<int> stop{0};
  TrainerOptions options = tiny_options(temp / "run");
  options.epochs = 100;
  options.stop = &stop;
  options.summary_file = temp / "copy.json";
  EvalReport last;
  StepReport step;
  TrainerCallbacks callbacks;
  callbacks.on_step = [&](const StepReport& report) { step = report; };
  callbacks.on_eval = [&](const EvalReport& report) {
    last = report;
    if (report.epoch == 1) stop = 1;  // stops after this epoch
  };
  const RunSummary summary = tiny_run(options, callbacks);
  CHECK(summary.interrupted);
  CHECK(summary.steps == 14);
  CHECK(summary.epochs == 2);
  CHECK(read_text(temp / "run/summary.json") == to_json(summary) + "\n");
  CHECK(read_text(temp / "copy.json") == to_json(summary) + "\n");
  const auto json = parsed(temp / "run/summary.json");
  CHECK(json["interrupted"] == true);
  CHECK(json["steps"] == 14);
  CHECK(json["top1"].get<double>() == last.stats.accuracy1());
  CHECK(json["top5"].get<double>() == last.stats.accuracy5());
  CHECK(json["test_loss"].get<double>() == last.stats.loss());
  CHECK(json["train_loss"].get<double>() == Approx(step.epoch_so_far.loss()));
  CHECK(json["weights_sha256"] == weights_sha256(load_checkpoint(temp / "run/checkpoints/last").weights));
}

TEST_CASE("a stopped evaluation without training is reported as interrupted, without a result") {
  const TemporaryFolder temp;
  TrainerOptions options = tiny_options(temp.path());
  options.epochs = 1;
  tiny_run(options);
  for (const bool stopped : {false, true}) {
    std::atomic<int> stop{stopped ? 2 : 0};
    TrainerOptions again = tiny_options();
    again.resume = temp.path();
    again.stop = &stop;
    const RunSummary summary = Trainer(dp::test::tiny_model(), dp::test::tiny_digits(), again).evaluate();
    CHECK(summary.interrupted == stopped);
    CHECK(summary.epochs == 1);
    CHECK(summary.steps == dp::test::kTinyBatches);
    CHECK((summary.test_loss > 0) != stopped);
  }
}

TEST_CASE("a run that stops before its first evaluation or step has no result to report") {
  for (const std::int64_t steps : {0, 3}) {
    const TemporaryFolder temp;
    std::atomic<int> stop{0};
    TrainerOptions options = tiny_options(temp.path());
    options.stop = &stop;
    TrainerCallbacks callbacks;
    callbacks.on_start = [&](const DataParallel&, const TrainerOptions&) { stop = steps == 0 ? 15 : 0; };
    callbacks.on_step = [&](const StepReport& report) { stop = report.step == steps ? 15 : 0; };
    CHECK(tiny_run(options, callbacks).interrupted);
    const auto json = parsed(temp / "summary.json");
    CHECK(json["steps"] == steps);
    CHECK(json["interrupted"] == true);
    for (const char* result : {"test_loss", "top1", "top5"}) CHECK(json[result].is_null());
    CHECK(json["train_loss"].is_null() == (steps == 0));

    options.stop = nullptr;  // the resumed run replaces it
    options.resume = "auto";
    tiny_run(options);
    CHECK(parsed(temp / "summary.json")["interrupted"] == false);
    CHECK(parsed(temp / "summary.json")["steps"] == 21);
  }
}

}  // namespace
