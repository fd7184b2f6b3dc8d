// The content and frequency of reports. Callbacks, metrics.jsonl and the summary must agree.
#include <chrono>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "support/catch.h"
#include "train/tiny_run.h"

namespace {

namespace fs = std::filesystem;
using namespace dp;
using dp::test::lines_of;
using dp::test::read_text;
using dp::test::TemporaryFolder;
using dp::test::tiny_options;
using dp::test::tiny_run;

constexpr double kPi = 3.14159265358979;

TEST_CASE("metrics.jsonl contains the callbacks' reports in order") {
  const TemporaryFolder temp;
  TrainerOptions options = tiny_options(temp.path());
  options.parallel.ema_decay = 0.9;
  std::vector<nlohmann::json> reported;
  TrainerCallbacks callbacks;
  callbacks.on_step = [&](const StepReport& r) {
    reported.push_back({{"kind", "train"},
                        {"epoch", r.epoch},
                        {"step", r.step},
                        {"lr", r.lr},
                        {"loss", r.recent.loss()},
                        {"images_per_second", r.images_per_second}});
    CHECK(r.batch == (r.step - 1) % 7);
    CHECK(r.epoch == (r.step - 1) / 7);
    CHECK(r.batches == 7);
    CHECK(r.lr ==
          Approx(0.05 * 0.5 * (1 + std::cos(kPi * static_cast<double>(r.step - 1) / 21))));  // 0 after the last epoch
    CHECK(r.images_per_second > 0);
    CHECK((r.batch < 6) == (r.eta_seconds > 0));
  };
  callbacks.on_eval = [&](const EvalReport& r) {
    reported.push_back({{"kind", "eval"},
                        {"epoch", r.epoch},
                        {"step", r.step},
                        {"loss", r.stats.loss()},
                        {"seconds", r.seconds},
                        {"average", r.average},
                        {"best", r.best}});
    if (!r.average) CHECK_FALSE(r.best);  // `best` refers to the average only
  };
  const RunSummary summary = tiny_run(options, callbacks);
  const auto lines = lines_of(read_text(temp / "metrics.jsonl"));
  REQUIRE(lines.size() == reported.size());
  REQUIRE(lines.size() == 21 + 6);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const auto line = nlohmann::json::parse(lines[i]);
    INFO(lines[i]);
    for (const auto& [key, value] : reported[i].items()) CHECK(line[key] == value);
  }
  CHECK(summary.model == "tiny");
  CHECK(summary.dataset == "digits");
  CHECK(summary.engine == "dp");
  CHECK(summary.global_batch == 48);
  CHECK(summary.test_loss == reported.back()["loss"].get<double>());
  CHECK(summary.checkpoint == temp / "checkpoints/last");
  CHECK(summary.output_dir == temp.path());
}

TEST_CASE("the training time is that of training alone") {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds kPause(150);
  Clock::time_point begin, end;
  TrainerCallbacks callbacks;
  callbacks.on_start = [&](const DataParallel&, const TrainerOptions&) { begin = Clock::now(); };
  callbacks.on_eval = [&](const EvalReport& report) {
    end = Clock::now();
    if (report.epoch < 2) std::this_thread::sleep_for(kPause);  // simulates a slow evaluation
  };
  const RunSummary summary = tiny_run(tiny_options(), callbacks);
  CHECK(summary.seconds_train > 0);
  CHECK(summary.seconds_train <= std::chrono::duration<double>(end - begin - 2 * kPause).count());
}

TEST_CASE("reports come every print_freq steps and at the end of an epoch, each with the steps since the last") {
  const auto reported_batches = [](int print_freq) {
    TrainerOptions options = tiny_options();
    options.epochs = 2;
    options.print_freq = print_freq;
    std::vector<std::int64_t> batches;
    std::int64_t samples = 0;
    TrainerCallbacks callbacks;
    callbacks.on_step = [&](const StepReport& report) {
      batches.push_back(report.batch);
      samples += report.recent.samples;
      CHECK(report.epoch_so_far.samples == std::min<std::int64_t>(48 * (report.batch + 1), 300));
    };
    tiny_run(options, callbacks);
    CHECK(samples == 2 * 300);
    return batches;
  };
  CHECK(reported_batches(0) == std::vector<std::int64_t>{6, 6});
  CHECK(reported_batches(3) == std::vector<std::int64_t>{0, 3, 6, 0, 3, 6});
  CHECK(reported_batches(4) == std::vector<std::int64_t>{0, 4, 6, 0, 4, 6});
  CHECK(reported_batches(50) == std::vector<std::int64_t>{0, 6, 0, 6});
}

TEST_CASE("checkpoints are written every so many epochs or steps, and always at the end") {
  const auto saved = [](std::int64_t epochs, std::int64_t steps, std::int64_t max_steps = 0) {
    const TemporaryFolder temp;
    TrainerOptions options = tiny_options(temp.path());
    options.epochs = 5;
    options.max_steps = max_steps;
    options.save_every_epochs = epochs;
    options.save_every_steps = steps;
    std::vector<std::int64_t> at;
    TrainerCallbacks callbacks;
    callbacks.on_checkpoint = [&](const std::string& folder) {
      if (fs::path(folder).filename() == "last") at.push_back(load_checkpoint(folder).state.step);
    };
    tiny_run(options, callbacks);
    return at;
  };
  CHECK(saved(1, 0) == std::vector<std::int64_t>{7, 14, 21, 28, 35});
  CHECK(saved(2, 0) == std::vector<std::int64_t>{14, 28, 35});
  CHECK(saved(0, 0) == std::vector<std::int64_t>{35});
  CHECK(saved(0, 10) == std::vector<std::int64_t>{10, 20, 30, 35});
  CHECK(saved(0, 7) == std::vector<std::int64_t>{7, 14, 21, 28, 35});  // after the epoch's evaluation
  CHECK(saved(1, 7) == std::vector<std::int64_t>{7, 14, 21, 28, 35});  // one save per step
  CHECK(saved(1, 0, 10) == std::vector<std::int64_t>{7, 10});
}

}  // namespace
