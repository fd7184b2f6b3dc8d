// The moving average of the weights in a training run: saved, resumed, evaluated.
#include <algorithm>
#include <cmath>

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
using dp::test::write_text;

TrainerOptions averaging(const std::string& folder) {
  TrainerOptions options = tiny_options(folder);
  options.parallel.ema_decay = 0.9;
  return options;
}

TEST_CASE("a resumed run continues its moving average bit for bit") {
  const TemporaryFolder temp;
  const RunSummary whole = tiny_run(averaging(temp / "whole"));
  const auto average = [&](const std::string& run) {
    return load_checkpoint(temp / (run + "/checkpoints/last")).average;
  };
  for (const std::int64_t step : {7, 10}) {
    const std::string run = "cut" + std::to_string(step);
    TrainerOptions options = averaging(temp / run);
    run_until(options, step);
    options.resume = "auto";
    const RunSummary resumed = tiny_run(options);
    CHECK(weights_sha256(average(run)) == weights_sha256(average("whole")));
    CHECK(resumed.weights_sha256 == whole.weights_sha256);
    CHECK(resumed.test_loss == whole.test_loss);
    CHECK(resumed.top1 == whole.top1);
  }
  CHECK(weights_sha256(average("whole")) != whole.weights_sha256);
}

TEST_CASE("the warm-up of an average that starts in a resumed run continues bit for bit") {
  const TemporaryFolder temp;
  for (const bool twice : {false, true}) {
    TrainerOptions options = tiny_options(temp / (twice ? "twice" : "once"));
    run_until(options, 7);
    options.parallel.ema_decay = 0.9;
    options.resume = "auto";
    if (twice) run_until(options, 10);
    tiny_run(options);
  }
  const Checkpoint once = load_checkpoint(temp / "once/checkpoints/last");
  const Checkpoint twice = load_checkpoint(temp / "twice/checkpoints/last");
  CHECK(once.average_updates == once.state.step - 7);
  CHECK(twice.average_updates == once.average_updates);
  CHECK(weights_sha256(twice.average) == weights_sha256(once.average));
}

TEST_CASE("the average of a run of 20 steps has left the initial weights") {
  const TemporaryFolder temp;
  TrainerOptions options = averaging(temp.path());
  options.parallel.ema_decay = 0.9998;
  options.max_steps = 20;
  tiny_run(options);
  const auto initial = DataParallel(tiny_model(), options.parallel).weights();
  const Checkpoint last = load_checkpoint(temp / "checkpoints/last");
  CHECK(last.average_updates == 20);
  const auto distance = [](const NamedTensors& a, const NamedTensors& b) {
    double sum = 0;
    for (const auto& [name, tensor] : a) {
      if (tensor.dtype() != DType::f32) continue;
      const auto other = std::find_if(b.begin(), b.end(), [&](const auto& each) { return each.first == name; });
      REQUIRE(other != b.end());
      const auto x = tensor.span<float>(), y = other->second.span<float>();
      for (std::size_t i = 0; i < x.size(); ++i) sum += std::pow(static_cast<double>(x[i] - y[i]), 2);
    }
    return std::sqrt(sum);
  };
  CHECK(distance(last.average, last.weights) < 0.5 * distance(initial, last.weights));
}

TEST_CASE("a run with a moving average is evaluated with it, running statistics included") {
  const TemporaryFolder temp;
  std::vector<EvalReport> reports;
  TrainerCallbacks callbacks;
  callbacks.on_eval = [&](const EvalReport& report) { reports.push_back(report); };
  const RunSummary summary = tiny_run(averaging(temp.path()), callbacks);
  REQUIRE(reports.size() == 6);
  const Checkpoint last = load_checkpoint(temp / "checkpoints/last");
  for (const bool average : {false, true}) {
    TrainerOptions options = tiny_options();
    options.parallel.devices = cpus(1);
    write_safetensors(temp / "w.safetensors", average ? last.average : last.weights);
    options.init = temp / "w.safetensors";
    const RunSummary direct = Trainer(tiny_model(), tiny_digits(), options).evaluate();
    const EvalReport& report = reports[average ? 5 : 4];
    CHECK(report.average == average);
    CHECK(report.stats.loss() == Approx(direct.test_loss).epsilon(1e-5));
    CHECK(report.stats.accuracy1() == direct.top1);
    if (average) CHECK(summary.test_loss == report.stats.loss());
  }
  CHECK(reports[4].stats.loss() != Approx(reports[5].stats.loss()).epsilon(1e-3));
}

TEST_CASE("keeping and evaluating an average does not change the training") {
  CHECK(tiny_run(averaging("")).weights_sha256 == tiny_run(tiny_options()).weights_sha256);
}

TEST_CASE("any wrong byte of the saved average is detected") {
  const TemporaryFolder temp;
  run_until(averaging(temp.path()), 2);
  const std::string folder = temp / "checkpoints/last", file = folder + "/ema.safetensors";
  const std::string whole = read_text(file);
  REQUIRE(whole.size() > 1000);
  for (std::size_t at = 0; at < whole.size(); at += 997) {
    std::string wrong = whole;
    wrong[at] = static_cast<char>(wrong[at] ^ (1 << at % 8));
    write_text(file, wrong);
    expect_error(ErrorCode::data, {"ema.safetensors", "has the checksum"}, [&] { load_checkpoint(folder); });
  }
  TrainerOptions resuming = averaging(temp.path());
  write_text(file, whole.substr(0, whole.size() - 1) + static_cast<char>(whole.back() ^ 1));
  resuming.resume = "auto";
  expect_error(ErrorCode::data, {"can be read"}, [&] { tiny_run(resuming); });
  write_text(file, whole);
  CHECK(load_checkpoint(folder).average.size() == load_checkpoint(folder).weights.size());
}

}  // namespace
