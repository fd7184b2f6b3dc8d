// Runs on a data set with targets: what is reported and recorded, which evaluation is the best, and resumed bits.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <nlohmann/json.hpp>

#include "dp/checkpoint.h"
#include "engine/train/console.h"
#include "support/catch.h"
#include "train/expect_error.h"
#include "train/ink_run.h"

using namespace dp;
using namespace dp::test;

namespace {

std::vector<nlohmann::json> records_in(const TemporaryFolder& temp, const std::string& kind) {
  std::vector<nlohmann::json> records;
  std::istringstream in(read_text(temp / "metrics.jsonl"));
  for (std::string line; std::getline(in, line);)
    if (nlohmann::json record = nlohmann::json::parse(line); record.at("kind") == kind) records.push_back(record);
  return records;
}

}  // namespace

TEST_CASE(
    "a run with targets records its metrics in place of accuracies, and its best evaluation has the lowest loss") {
  const TemporaryFolder temp;
  Trainer trainer(ink_model(), ink(), ink_options(temp.path()));
  std::vector<std::string> lines;
  TrainerCallbacks callbacks;
  callbacks.on_epoch = [&](const EpochReport& report) { lines.push_back(epoch_line(report, 2)); };
  const RunSummary summary = trainer.run(callbacks);
  CHECK(std::isnan(summary.top1));
  REQUIRE(summary.metrics.size() == 3);
  CHECK(summary.metrics[1].name == "rmse");
  CHECK(summary.metrics[1].value == Approx(std::sqrt(summary.test_loss)));
  CHECK_THAT(summary_text(summary), Catch::Contains("Result: MAE ") && Catch::Contains("RMSE ") &&
                                        Catch::Contains("  loss ") && !Catch::Contains("Acc"));
  REQUIRE(lines.size() == 3);
  CHECK_THAT(lines.front(), Catch::Contains("Test: loss ") && Catch::Contains(" MAE ") && !Catch::Contains("Acc"));

  const auto evaluations = records_in(temp, "eval"), steps = records_in(temp, "train");
  REQUIRE(evaluations.size() == 3);
  double best = INFINITY;
  for (const nlohmann::json& one : evaluations) {
    CHECK(one.at("best") == (one.at("loss").get<double>() < best));
    best = std::min(best, one.at("loss").get<double>());
    CHECK(one.at("rmse").get<double>() == Approx(std::sqrt(one.at("loss").get<double>())));
    CHECK_FALSE(one.contains("top1"));
  }
  CHECK(evaluations.back().at("best") == true);  // it learns
  CHECK_FALSE(steps.front().contains("top1"));
  CHECK(load_checkpoint(temp / "checkpoints/last").state.best_loss.value() == Approx(best));
  CHECK_THAT(read_text(temp / "config.toml"), Catch::Contains("300 training and 130 test images, 2 targets"));
  CHECK(describe_data(ink()) == "data: 300 training and 130 test images\n2 targets for each image");
}

TEST_CASE("a stopped run with targets resumes to the same bits and the same best loss") {
  const TemporaryFolder temp;
  const auto run = [&](const TrainerOptions& options) { return Trainer(ink_model(), ink(), options).run(); };
  const RunSummary whole = run(ink_options());
  TrainerOptions first = ink_options(temp.path());
  std::atomic<int> stop{0};
  first.stop = &stop;
  TrainerCallbacks callbacks;
  callbacks.on_step = [&](const StepReport& report) {
    if (report.step == 9) stop = 2;
  };
  Trainer(ink_model(), ink(), first).run(callbacks);
  TrainerOptions rest = ink_options(temp.path());
  rest.resume = "auto";
  const RunSummary resumed = run(rest);
  CHECK(resumed.weights_sha256 == whole.weights_sha256);
  CHECK(resumed.test_loss == whole.test_loss);
  CHECK(resumed.metrics.at(2).value == whole.metrics.at(2).value);
}

TEST_CASE("device-resident images with targets train to the same bits") {
  TrainerOptions options = ink_options();
  const std::string on_host = Trainer(ink_model(), ink(), options).run().weights_sha256;
  options.images_on = ImagesOn::device;
  CHECK(Trainer(ink_model(), ink(), options).run().weights_sha256 == on_host);
}

TEST_CASE("patience counts evaluations without a lower loss") {
  TrainerOptions options = ink_options();
  options.epochs = 20;
  options.patience = 2;
  options.optimizer = Sgd{.lr = 0};
  const RunSummary summary = Trainer(ink_model(), ink(), options).run();
  CHECK(summary.end == "early: 2 evaluations without a lower loss (--patience)");
  CHECK(summary.epochs == 3);
}

TEST_CASE("the loss and the data set must fit: targets for a loss of outputs, class numbers for cross-entropy") {
  TrainerOptions options = ink_options();
  expect_error(ErrorCode::usage, {"--output-loss mse needs targets, and the data set has class numbers; remove it"},
               [&] { Trainer(tiny_model(), tiny_digits(), options); });
  expect_error(ErrorCode::usage, {"model 'tiny' outputs (10,), but the samples have 2 targets"},
               [&] { Trainer(tiny_model(), ink(), options); });
  options.parallel.output_loss.reset();
  expect_error(ErrorCode::usage,
               {"the data set has targets, and cross-entropy reads class numbers; choose --output-loss"},
               [&] { Trainer(ink_model(), ink(), options); });
}
