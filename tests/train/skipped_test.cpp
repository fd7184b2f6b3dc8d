// Steps skipped because of NaN: counted and reported. A run or epoch that skips every step is an error.
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/train/console.h"
#include "support/catch.h"
#include "support/failing.h"
#include "train/expect_error.h"
#include "train/tiny_run.h"

namespace {

using namespace dp;
using dp::test::expect_error;
using dp::test::FailEnvironment;
using dp::test::read_text;
using dp::test::TemporaryFolder;
using dp::test::tiny_options;
using dp::test::tiny_run;

TrainerOptions skipping(const std::string& folder = "") {
  TrainerOptions options = tiny_options(folder);
  options.parallel.on_nonfinite = OnNonfinite::skip;
  return options;
}

std::int64_t skipped_in(const std::string& summary) {
  return nlohmann::json::parse(read_text(summary))["skipped_steps"].get<std::int64_t>();
}

// A DP_FAIL text that makes the gradients of steps first..last NaN.
std::string failing(int first, int last) {
  std::string text;
  for (int step = first; step <= last; ++step)
    text += (text.empty() ? "nan:backward:dev0:step" : ",nan:backward:dev0:step") + std::to_string(step);
  return text;
}

TEST_CASE("skipped steps are counted by step, by epoch and in the summary, resumed parts included") {
  const TemporaryFolder temp;
  const FailEnvironment nan("nan:backward:dev0:step3,nan:backward:dev0:step4,nan:backward:dev1:step12");
  std::string said;
  std::int64_t skipped = 0;
  TrainerCallbacks callbacks;
  callbacks.on_step = [&](const StepReport& report) { skipped += report.recent.skipped; };
  callbacks.on_message = [&](const std::string& text) { said += text + "\n"; };
  const RunSummary summary = tiny_run(skipping(temp / "whole"), callbacks);
  CHECK(skipped == 3);
  CHECK(summary.skipped_steps == 3);
  CHECK(std::isfinite(summary.test_loss));
  CHECK(skipped_in(temp / "whole/summary.json") == 3);
  CHECK(said.find("2 of 7 steps of epoch 0 were skipped") != std::string::npos);
  CHECK(said.find("1 of 7 steps of epoch 1 were skipped") != std::string::npos);
  CHECK(said.find("epoch 2") == std::string::npos);
  CHECK(summary_text(summary).find("3 of 21 steps were skipped") != std::string::npos);
  CHECK(summary_text({}).find("skipped") == std::string::npos);

  TrainerOptions cut = skipping(temp / "cut");
  CHECK(dp::test::run_until(cut, 10).skipped_steps == 2);
  cut.resume = "auto";
  const RunSummary resumed = tiny_run(cut);
  CHECK(resumed.skipped_steps == 3);
  CHECK(resumed.weights_sha256 == summary.weights_sha256);
}

TEST_CASE("an epoch in which every step was skipped ends the run") {
  const TemporaryFolder temp;
  const std::string whole_epoch = failing(7, 13);
  const FailEnvironment nan(whole_epoch.c_str());
  expect_error(ErrorCode::nonfinite,
               {"7 of 7 steps of epoch 1 were skipped", temp / "checkpoints/last", "learning rate"},
               [&] { tiny_run(skipping(temp.path())); });
  CHECK(load_checkpoint(temp / "checkpoints/last").state.step == 7);
  CHECK_FALSE(std::filesystem::exists(temp / "summary.json"));
}

TEST_CASE("a run in which every step was skipped is an error, also if it was interrupted") {
  TrainerOptions options = skipping();
  {
    const FailEnvironment nan("nan:backward");
    options.max_steps = 3;
    expect_error(ErrorCode::nonfinite, {"3 of 3 steps", "there is no checkpoint yet"}, [&] { tiny_run(options); });
    const TemporaryFolder temp;
    TrainerOptions parts = skipping(temp.path());
    CHECK(dp::test::run_until(parts, 3).skipped_steps == 3);  // a stopped run is not complete
    parts.resume = "auto";
    expect_error(ErrorCode::nonfinite, {"4 of 4 steps"}, [&] { tiny_run(parts); });
  }
  const std::string late = failing(6, 8);  // the end of one epoch and the start of the next
  const FailEnvironment nan(late.c_str());
  options.max_steps = 9;
  CHECK(tiny_run(options).skipped_steps == 3);
}

TEST_CASE("a run that skips steps is not advised to skip them") {
  const auto advice = [](const TrainerOptions& options) {
    const FailEnvironment nan("nan:backward");
    try {
      tiny_run(options);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(advice(skipping()).find("--on-nonfinite skip") == std::string::npos);
  CHECK(advice(tiny_options()).find("--on-nonfinite skip") != std::string::npos);
}

TEST_CASE("float16 may skip a whole epoch while it lowers the loss scale, and no further") {
  TrainerOptions options = tiny_options();
  options.parallel.devices = {Device{DeviceKind::reference, 0}};
  options.parallel.amp = Amp::float16;
  options.parallel.loss_scale.initial = 0x1p33f;
  options.epochs = 2;
  const RunSummary summary = tiny_run(options);
  CHECK(summary.skipped_steps >= 7);
  CHECK(summary.skipped_steps < 14);
  const FailEnvironment nan("nan:backward");  // independent of the loss scale
  options.parallel.loss_scale.initial = 4;
  expect_error(ErrorCode::nonfinite, {"7 of 7 steps of epoch 0"}, [&] { tiny_run(options); });
}

}  // namespace
