// Learning-rate factors against hand-computed values and torch.optim.lr_scheduler.
#include <cmath>

#include "dp/optimizer.h"
#include "support/catch.h"

namespace {

using dp::Schedule;
using dp::ScheduleKind;

// The factor before step `step` of an epoch with `per_epoch` steps, called as the trainer calls it.
double factor(const Schedule& schedule, int step, int per_epoch) {
  return schedule.factor(step * (1.0 / per_epoch), 1.0 / per_epoch);
}

TEST_CASE("a constant rate does not change") {
  for (const int step : {0, 1, 99, 1000}) CHECK(factor({.kind = ScheduleKind::constant}, step, 10) == 1);
}

TEST_CASE("step equals StepLR") {
  const Schedule schedule{.kind = ScheduleKind::step, .step_size = 3, .gamma = 0.5};
  // torch: StepLR(step_size=3, gamma=0.5), epochs 0..7
  const double torch[] = {1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25};
  for (int epoch = 0; epoch < 8; ++epoch)
    CHECK(factor(schedule, epoch * 469, 469) == Approx(torch[epoch]).epsilon(1e-12));
  CHECK(factor(schedule, 3 * 469 - 1, 469) == 1);
}

TEST_CASE("a drop happens exactly at its step, whatever the rounding of the division") {
  for (int per_epoch = 1; per_epoch < 500; ++per_epoch)
    for (const int epoch : {1, 2, 3, 7, 30}) {
      const Schedule step{.kind = ScheduleKind::step, .step_size = static_cast<double>(epoch), .gamma = 0.1};
      const Schedule multi{.kind = ScheduleKind::multistep, .gamma = 0.1, .milestones = {static_cast<double>(epoch)}};
      for (const Schedule& schedule : {step, multi}) {
        if (factor(schedule, epoch * per_epoch - 1, per_epoch) != 1) FAIL("early at " << epoch << " of " << per_epoch);
        if (factor(schedule, epoch * per_epoch, per_epoch) > 0.11) FAIL("late at " << epoch << " of " << per_epoch);
      }
    }
  const Schedule tenth{.kind = ScheduleKind::step, .step_size = 0.1, .gamma = 0.5};  // 0.3 / 0.1 rounds to less than 3
  CHECK(factor(tenth, 3, 10) == Approx(0.125));
}

TEST_CASE("multistep equals MultiStepLR") {
  const Schedule schedule{.kind = ScheduleKind::multistep, .gamma = 0.1, .milestones = {2, 3, 3, 6}};
  // torch: MultiStepLR(milestones=[2, 3, 3, 6], gamma=0.1). A repeated milestone counts twice.
  const double torch[] = {1, 1, 0.1, 1e-3, 1e-3, 1e-3, 1e-4};
  for (int epoch = 0; epoch < 7; ++epoch) CHECK(factor(schedule, epoch * 7, 7) == Approx(torch[epoch]).epsilon(1e-12));
  const Schedule half{.kind = ScheduleKind::multistep, .gamma = 0.1, .milestones = {0.5}};
  CHECK(factor(half, 4, 10) == 1);
  CHECK(factor(half, 5, 10) == Approx(0.1));
}

TEST_CASE("cosine to a lowest rate equals CosineAnnealingLR with eta_min") {
  const Schedule schedule{.kind = ScheduleKind::cosine, .warmup_epochs = 1, .total_epochs = 5, .min_lr = 0.02};
  CHECK(schedule.rate(0.1, 0, 0.25) == Approx(0.025));  // warming up: a quarter of the rate
  // torch: CosineAnnealingLR(T_max=4, eta_min=0.02), base rate 0.1
  const double torch[] = {0.1, 0.08828427124746191, 0.06, 0.031715728752538104, 0.02};
  for (int epoch = 0; epoch < 5; ++epoch) CHECK(schedule.rate(0.1, 1 + epoch, 0.25) == Approx(torch[epoch]));
  CHECK(Schedule{.kind = ScheduleKind::constant, .min_lr = 0.02}.rate(0.1, 3, 0.25) == 0.1);
}

TEST_CASE("cosine equals CosineAnnealingLR") {
  const Schedule schedule{.kind = ScheduleKind::cosine, .total_epochs = 4};
  // torch: CosineAnnealingLR(T_max=4), base rate 1
  const double torch[] = {1, 0.8535533905932737, 0.5, 0.14644660940672627, 0};
  for (int epoch = 0; epoch < 5; ++epoch)
    CHECK(factor(schedule, epoch * 12, 12) == Approx(torch[epoch]).epsilon(1e-12).margin(1e-12));
  CHECK(factor(schedule, 4 * 12 - 1, 12) > 0);
  CHECK(factor(schedule, 6 * 12, 12) == Approx(0).margin(1e-12));  // stays at 0 past the end
}

TEST_CASE("exponential equals ExponentialLR") {
  const Schedule schedule{.kind = ScheduleKind::exponential, .gamma = 0.98};
  // ExponentialLR(gamma=0.98) by PyTorch's formula, epochs 0..4
  const double torch[] = {1, 0.98, 0.9604, 0.941192, 0.92236816};
  for (int epoch = 0; epoch < 5; ++epoch)
    CHECK(factor(schedule, epoch * 469, 469) == Approx(torch[epoch]).epsilon(1e-12));
  CHECK(factor(schedule, 5, 10) == Approx(std::sqrt(0.98)));  // between epochs as well
}

TEST_CASE("polynomial equals PolynomialLR, with a lowest rate and after a warm-up") {
  const Schedule schedule{.kind = ScheduleKind::polynomial, .total_epochs = 4, .power = 0.9};
  // PyTorch's formula of PolynomialLR(total_iters=4, power=0.9), base rate 1: (1 - min(epoch, 4) / 4) ** 0.9
  const double torch[] = {1, 0.7718895067, 0.5358867313, 0.2871745887, 0, 0};
  for (int epoch = 0; epoch < 6; ++epoch)
    CHECK(factor(schedule, epoch * 12, 12) == Approx(torch[epoch]).epsilon(1e-9).margin(1e-9));
  const Schedule warm{
      .kind = ScheduleKind::polynomial, .warmup_epochs = 1, .total_epochs = 5, .min_lr = 0.02, .power = 1};
  CHECK(warm.rate(0.1, 0, 0.25) == Approx(0.025));
  for (int epoch = 0; epoch < 5; ++epoch) CHECK(warm.rate(0.1, 1 + epoch, 0.25) == Approx(0.1 - 0.02 * epoch));
}

TEST_CASE("onecycle equals OneCycleLR at every step") {
  const Schedule schedule{.kind = ScheduleKind::onecycle, .total_epochs = 2};
  // By PyTorch's formula: OneCycleLR(max_lr=1, total_steps=10, cycle_momentum=False)
  const double torch[] = {
      0.04, 0.52, 1, 0.950484632013, 0.81174565395, 0.611262021936, 0.388741978064, 0.18825834605, 0.0495193679865,
      4e-06};
  for (int step = 0; step < 10; ++step) CHECK(factor(schedule, step, 5) == Approx(torch[step]).epsilon(1e-9));
  const Schedule half{
      .kind = ScheduleKind::onecycle, .total_epochs = 1, .pct_start = 0.5, .div_factor = 10, .final_div_factor = 100};
  // The same with total_steps=8, pct_start=0.5, div_factor=10, final_div_factor=100
  const double other[] = {0.1, 0.325, 0.775, 1, 0.853699837203, 0.5005, 0.147300162797, 0.001};
  for (int step = 0; step < 8; ++step) CHECK(factor(half, step, 8) == Approx(other[step]).epsilon(1e-9));
  CHECK(factor(half, 9, 8) == Approx(1e-3));  // stays at the last rate past the end
  const Schedule rising{.kind = ScheduleKind::onecycle, .total_epochs = 1, .pct_start = 1};
  CHECK(factor(rising, 7, 8) == 1);
  const Schedule one_step{.kind = ScheduleKind::onecycle, .total_epochs = 1};
  CHECK(std::isfinite(factor(one_step, 0, 1)));
}

TEST_CASE("plateau equals ReduceLROnPlateau") {
  // The rates of ReduceLROnPlateau(factor=0.25, patience=2, min_lr=0.01) after each of these losses, base rate 0.4.
  const double losses[] = {1,   0.9,     0.90001, 0.89995, 0.9, 0.5, 0.6, 0.6, 0.6,
                           0.6, 0.49999, 0.4,     NAN,     0.5, 0.5, 0.4, 0.4, 0.4};
  const double torch[] = {0.4,   0.4,   0.4,   0.4,   0.1,   0.1,  0.1,  0.1,  0.025,
                          0.025, 0.025, 0.025, 0.025, 0.025, 0.01, 0.01, 0.01, 0.01};
  const Schedule schedule{.kind = ScheduleKind::plateau, .gamma = 0.25, .min_lr = 0.01, .patience = 2};
  dp::Plateau plateau;
  for (int i = 0; i < 18; ++i) {
    plateau.evaluated(schedule, 0.4, losses[i]);
    INFO("loss " << i);
    CHECK(schedule.rate(0.4 * plateau.factor, i + 1, 0.25) == Approx(torch[i]).epsilon(1e-12));
  }
  CHECK(factor({.kind = ScheduleKind::plateau, .warmup_epochs = 1}, 1, 4) == 0.5);
}

TEST_CASE("warm-up rises linearly from one over its steps") {
  const Schedule constant{.kind = ScheduleKind::constant, .warmup_epochs = 0.5};
  for (int step = 0; step < 5; ++step) CHECK(factor(constant, step, 10) == Approx((step + 1) / 5.0));
  CHECK(factor(constant, 5, 10) == 1);

  const Schedule step{.kind = ScheduleKind::step, .step_size = 1, .gamma = 0.5, .warmup_epochs = 2};
  CHECK(factor(step, 1, 2) == Approx(0.5));
  CHECK(factor(step, 2, 2) == Approx(0.75 * 0.5));
  CHECK(factor(step, 4, 2) == Approx(0.25));

  const Schedule cosine{.kind = ScheduleKind::cosine, .warmup_epochs = 1, .total_epochs = 5};
  CHECK(factor(cosine, 0, 4) == Approx(0.25));
  CHECK(factor(cosine, 3, 4) == Approx(1));
  CHECK(factor(cosine, 4, 4) == Approx(1));
  CHECK(factor(cosine, 12, 4) == Approx(0.5));
  CHECK(factor(cosine, 20, 4) == Approx(0).margin(1e-12));

  const Schedule all_warmup{.kind = ScheduleKind::cosine, .warmup_epochs = 1, .total_epochs = 1};
  CHECK(factor(all_warmup, 4, 4) == 1);
}

}  // namespace
