// How a run ends: evaluations every few epochs, early stopping, and an end that a callback asks for.
#include <filesystem>
#include <nlohmann/json.hpp>

#include "support/catch.h"
#include "train/expect_error.h"
#include "train/tiny_run.h"

namespace {

using namespace dp;
using dp::test::kTinyBatches;
using dp::test::read_text;
using dp::test::run_until;
using dp::test::TemporaryFolder;
using dp::test::tiny_options;
using dp::test::tiny_run;

// The epochs after which a run evaluates.
std::vector<std::int64_t> evaluated(const TrainerOptions& options, RunSummary* summary = nullptr) {
  std::vector<std::int64_t> epochs;
  TrainerCallbacks callbacks;
  callbacks.on_eval = [&](const EvalReport& report) { epochs.push_back(report.step / kTinyBatches); };
  const RunSummary result = tiny_run(options, callbacks);
  if (summary != nullptr) *summary = result;
  return epochs;
}

TrainerOptions without_progress(const std::string& folder = "") {
  TrainerOptions options = tiny_options(folder);
  options.epochs = 9;
  options.patience = 2;
  options.optimizer = Sgd{.lr = 0};
  options.parallel.batch_norm = BatchNormMode::sync;
  return options;
}

TEST_CASE("a run evaluates every few epochs, and after its last") {
  TrainerOptions options = tiny_options();
  options.epochs = 5;
  options.eval_every = 2;
  CHECK(evaluated(options) == std::vector<std::int64_t>{2, 4, 5});
  options.eval_every = 100;
  CHECK(evaluated(options) == std::vector<std::int64_t>{5});
  options.max_steps = 10;
  CHECK(evaluated(options) == std::vector<std::int64_t>{1});
}

TEST_CASE("a run without evaluations has no test result and no best checkpoint, and resumes without one") {
  const TemporaryFolder temp;
  TrainerOptions options = tiny_options(temp.path());
  options.schedule.kind = ScheduleKind::constant;
  options.eval_every = 0;
  options.max_steps = 10;
  RunSummary summary;
  CHECK(evaluated(options, &summary).empty());
  CHECK(summary.end == "complete");
  CHECK(load_checkpoint(temp / "checkpoints/last").state.step == 10);
  CHECK_FALSE(std::filesystem::exists(temp / "checkpoints/best"));
  CHECK(nlohmann::json::parse(read_text(temp / "summary.json"))["top1"].is_null());
  options.max_steps = 0;
  options.resume = "auto";
  CHECK(evaluated(options, &summary).empty());
  CHECK(evaluated(options, &summary).empty());  // nothing is left to train
  TrainerOptions whole = tiny_options();
  whole.schedule.kind = ScheduleKind::constant;
  CHECK(tiny_run(whole).weights_sha256 == summary.weights_sha256);
  whole.eval_every = 0, whole.patience = 1;
  dp::test::expect_error(ErrorCode::usage, {"--patience", "--no-eval"}, [&] { tiny_run(whole); });
}

TEST_CASE("a short run says beforehand that a large test set will be evaluated") {
  const DatasetPair data = datasets::digits(300, 1000);
  const auto said = [&](std::int64_t steps, std::int64_t eval_every) {
    TrainerOptions options = tiny_options();
    options.max_steps = steps;
    options.eval_every = eval_every;
    std::string before;
    bool trained = false;
    TrainerCallbacks callbacks;
    callbacks.on_step = [&](const StepReport&) { trained = true; };
    callbacks.on_message = [&](const std::string& text) { before += trained ? "" : text; };
    Trainer(dp::test::tiny_model(), data, options).run(callbacks);
    return before;
  };
  CHECK(said(3, 1) == "1,000 images are evaluated after the 3 steps; --no-eval leaves that out");
  CHECK(said(3, 0).empty());
  CHECK(said(7, 1).empty());
}

TEST_CASE("a run without a better evaluation ends once its patience is out, with a complete summary") {
  const TemporaryFolder temp;
  TrainerOptions options = without_progress(temp.path());
  RunSummary summary;
  const std::size_t evaluations = evaluated(options, &summary).size();
  CHECK(evaluations >= 3);
  CHECK(evaluations < 9);
  CHECK_FALSE(summary.interrupted);
  CHECK(summary.steps == static_cast<std::int64_t>(evaluations) * kTinyBatches);
  const std::string end = "early: 2 evaluations without a higher top-1 (--patience)";
  CHECK(nlohmann::json::parse(read_text(temp / "summary.json"))["interrupted"] == false);
  CHECK(nlohmann::json::parse(read_text(temp / "summary.json"))["end"] == end);
  CHECK(nlohmann::json::parse(read_text(temp / "env.json"))["parts"][0]["end"] == end);
  CHECK_THAT(read_text(temp / "report.html"), Catch::Contains(end));
  options.resume = "auto";
  CHECK(evaluated(options, &summary).size() == 1);  // it has ended: only the result is evaluated again
  CHECK(summary.steps == static_cast<std::int64_t>(evaluations) * kTinyBatches);
  options.patience = 4;
  CHECK(evaluated(options, &summary).size() == 2);
}

TEST_CASE("a resumed run counts the evaluations of its earlier part against its patience") {
  const TemporaryFolder temp;
  TrainerOptions options = without_progress();
  const std::vector<std::int64_t> whole = evaluated(options);
  options.output_dir = temp.path();
  TrainerOptions first = options;
  first.save_every_steps = 1;
  REQUIRE(run_until(first, whole.back() * kTinyBatches - 2).interrupted);
  options.resume = "auto";
  CHECK(evaluated(options) == std::vector<std::int64_t>{whole.back()});
}

TEST_CASE("a callback ends a run after any step, with an evaluation, a checkpoint and a complete summary") {
  const TemporaryFolder temp;
  std::atomic<int> finish{0};
  TrainerOptions options = tiny_options(temp.path());
  options.finish = &finish;
  TrainerCallbacks callbacks;
  int evaluations = 0;
  callbacks.on_step = [&](const StepReport& report) { finish = report.step == 10; };
  callbacks.on_eval = [&](const EvalReport&) { ++evaluations; };
  const RunSummary summary = tiny_run(options, callbacks);
  CHECK_FALSE(summary.interrupted);
  CHECK(summary.end == "early: requested by the program");
  CHECK(summary.steps == 10);
  CHECK(evaluations == 2);
  CHECK(summary.top1 >= 0);
  CHECK(load_checkpoint(temp / "checkpoints/last").state.step == 10);

  options.finish = nullptr;
  options.resume = "auto";
  const TemporaryFolder other;
  TrainerOptions whole = tiny_options(other.path());
  CHECK(tiny_run(options).weights_sha256 == tiny_run(whole).weights_sha256);
}

}  // namespace
