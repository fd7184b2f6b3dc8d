// Runs that are resumed with another batch size, and the total time of a resumed run.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "support/catch.h"
#include "train/expect_error.h"
#include "train/tiny_run.h"

namespace {

using namespace dp;
using namespace dp::test;

TEST_CASE("a run resumed with another batch size continues with the next image and the same point of the schedule") {
  struct Row {
    std::int64_t stop, batch, first, steps;  // first: number of the first batch; steps: of the whole run
  };
  // Epochs of 300 images: 7 batches of 48, 10 of 32, 13 of 24, 6 of 50.
  for (const Row& row : {Row{2, 32, 3, 2 + 7 + 20}, Row{2, 24, 4, 2 + 9 + 26}, Row{7, 50, 0, 7 + 12}}) {
    INFO("stopped after step " << row.stop << ", then batches of " << row.batch);
    const TemporaryFolder temp;
    TrainerOptions options = tiny_options(temp.path());
    run_until(options, row.stop);
    options.resume = "auto";
    options.batch_size = row.batch;
    std::optional<StepReport> first;
    std::vector<std::string> said;
    TrainerCallbacks callbacks;
    callbacks.on_step = [&](const StepReport& report) { first = first.value_or(report); };
    callbacks.on_message = [&](const std::string& text) { said.push_back(text); };
    const RunSummary summary = tiny_run(options, callbacks);
    CHECK(summary.steps == row.steps);
    REQUIRE(first);
    CHECK(first->batch == row.first);
    CHECK(first->step == row.stop + 1);
    CHECK(first->epoch == (row.first == 0 ? 1 : 0));
    Schedule schedule{.kind = ScheduleKind::cosine, .total_epochs = 3};
    const double per_step = 1.0 / static_cast<double>(first->batches);
    CHECK(first->lr ==
          Approx(schedule.rate(0.05, static_cast<double>(first->epoch) + static_cast<double>(row.first) * per_step,
                               per_step)));
    CHECK(std::ranges::find(said, fmt::format("batch-size 48 -> {}", row.batch)) != said.end());
  }
}

TEST_CASE("a resume inside a batch of the new size is refused") {
  const TemporaryFolder temp;
  run_until(tiny_options(temp / "run"), 2);
  TrainerOptions options = tiny_options();
  options.resume = temp / "run";
  options.batch_size = 50;
  expect_error(ErrorCode::usage, {"96 images into an epoch", "a batch of 50", "a batch size that divides 96"},
               [&] { tiny_run(options); });
}

TEST_CASE("the training time of a resumed run includes its earlier parts") {
  const TemporaryFolder temp;
  TrainerOptions options = tiny_options(temp.path());
  const double first = run_until(options, 8).seconds_train;
  CHECK(first > 0);
  options.resume = "auto";
  const double both = tiny_run(options).seconds_train;
  CHECK(both > first);
  const double again = tiny_run(options).seconds_train;  // nothing is left to train
  double before = 0;
  for (const std::string& line : lines_of(read_text(temp / "metrics.jsonl"))) {
    const auto record = nlohmann::json::parse(line);
    if (record["kind"] != "train") continue;
    CHECK(record["seconds_train"] > before);
    before = record["seconds_train"];
  }
  CHECK(before == Approx(again));
  CHECK(before <= both);  // the run goes on for a moment after its last line
}

}  // namespace
