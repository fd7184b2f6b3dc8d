// Runs whose learning rate follows the test loss.
#include "support/catch.h"
#include "train/expect_error.h"
#include "train/tiny_run.h"

using namespace dp;
using namespace dp::test;

namespace {

// The test loss does not fall with a rate of 0, so the rate is reduced after every second evaluation.
TrainerOptions on_plateau(float lr, const std::string& folder = "") {
  TrainerOptions options = tiny_options(folder);
  options.epochs = 6;
  options.optimizer = Sgd{.lr = lr};
  options.schedule = {.kind = ScheduleKind::plateau, .gamma = 0.5, .patience = 1};
  return options;
}

// The rates of the epochs.
std::vector<double> rates(const TrainerOptions& options) {
  std::vector<double> all;
  TrainerCallbacks callbacks;
  callbacks.on_epoch = [&](const EpochReport& report) { all.push_back(report.lr); };
  tiny_run(options, callbacks);
  return all;
}

}  // namespace

TEST_CASE("the learning rate falls when the test loss does not, and a resumed run continues with it") {
  const float lr = 1e-7f;  // the loss changes by less than one part in 10,000
  const auto fell = [&](double times) { return Approx(static_cast<double>(lr) * std::pow(0.5, times)).epsilon(1e-9); };
  TrainerOptions options = on_plateau(lr);
  options.schedule.min_lr = 0;
  options.parallel.batch_norm = BatchNormMode::master;
  const std::vector<double> whole = rates(options);
  REQUIRE(whole.size() == 6);
  CHECK(whole.back() < whole.front());
  CHECK(whole.front() == fell(0));
  const TemporaryFolder temp;
  options = on_plateau(lr, temp.path());
  options.epochs = 4;
  const std::vector<double> begun = rates(options);
  CHECK(begun == std::vector(whole.begin(), whole.begin() + 4));
  const Plateau saved = load_checkpoint(temp / "checkpoints/last").state.plateau;
  CHECK(saved.best.has_value());
  options.epochs = 6;
  options.resume = "auto";
  const std::vector<double> continued = rates(options);
  REQUIRE(continued.size() == 2);
  CHECK(continued == std::vector(whole.begin() + 4, whole.end()));
}

TEST_CASE("a run that is resumed with another schedule has its rate, whatever the plateau had reduced") {
  const TemporaryFolder temp;
  TrainerOptions options = on_plateau(1e-7f, temp.path());
  options.epochs = 4;
  CHECK(rates(options).back() < 1e-7);
  options.epochs = 5;
  options.resume = "auto";
  options.schedule = {.kind = ScheduleKind::constant};
  const std::vector<double> rest = rates(options);
  REQUIRE(rest.size() == 1);
  CHECK(rest.front() == Approx(1e-7).epsilon(1e-6));
}

TEST_CASE("a plateau needs evaluations, and a factor below 1") {
  TrainerOptions options = on_plateau(0.1f);
  options.schedule.gamma = 1;
  expect_error(ErrorCode::usage, {"--lr-scheduler plateau reduces the learning rate; set --lr-gamma below 1"},
               [&] { Trainer(tiny_model(), tiny_digits(), options); });
  options.schedule.gamma = 0.5;
  options.eval_every = 0;
  expect_error(ErrorCode::usage, {"--lr-scheduler plateau follows the test loss"},
               [&] { Trainer(tiny_model(), tiny_digits(), options); });
}
