// Training time and throughput: what counts.
#include "engine/train/passes.h"

#include <chrono>
#include <thread>

#include "support/catch.h"
#include "train/tiny_run.h"

namespace {

using dp::Meter;

void let_time_pass() { std::this_thread::sleep_for(std::chrono::milliseconds(2)); }

TEST_CASE("the clock runs between run and pause only") {
  Meter meter(true);
  let_time_pass();
  CHECK(meter.seconds() == 0);
  meter.run();
  let_time_pass();
  meter.run();  // resumes
  CHECK(meter.seconds() >= 0.002);
  meter.pause();
  const double first = meter.seconds();
  CHECK(first >= 0.002);
  let_time_pass();
  CHECK(meter.seconds() == first);
  const auto begin = std::chrono::steady_clock::now();
  meter.run();
  let_time_pass();
  meter.pause();
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
  CHECK(meter.seconds() - first >= 0.002);
  CHECK(meter.seconds() - first <= passed.count());
}

TEST_CASE("the warm-up ends once, after ten steps") {
  Meter meter(true);
  meter.run();
  for (int step = 1; step <= 9; ++step) {
    meter.add(1);
    CHECK_FALSE(meter.warmup_ends());
  }
  meter.add(1);
  CHECK(meter.warmup_ends());
  meter.end_warmup();
  meter.add(1);
  CHECK_FALSE(meter.warmup_ends());
}

TEST_CASE("the throughput of a run excludes the warm-up") {
  dp::TrainerOptions options = dp::test::tiny_options();
  options.epochs = 1;
  dp::TrainerCallbacks callbacks;
  callbacks.on_step = [](const dp::StepReport& report) {
    if (report.step == 1) std::this_thread::sleep_for(std::chrono::seconds(3));
  };
  // The warm-up is the first step, because it takes more than a second. The rate over all steps is lower, unless the
  // other steps take over a minute.
  const dp::RunSummary summary = dp::test::tiny_run(options, callbacks);
  CHECK(summary.seconds_train >= 3);
  CHECK(summary.images_per_second > 300 / summary.seconds_train);
}

TEST_CASE("the rate excludes the warm-up and everything before a mark") {
  Meter meter(true);
  meter.run();
  let_time_pass();
  meter.add(1000);
  meter.pause();
  const double warmup = meter.seconds();
  CHECK(meter.rate() == Approx(1000 / warmup));  // nothing followed the warm-up: the rate covers everything
  meter.end_warmup();
  CHECK(meter.rate() == Approx(1000 / warmup));
  meter.run();
  let_time_pass();
  meter.add(30);
  meter.pause();
  const double second = meter.seconds();
  CHECK(meter.rate() == Approx(30 / (second - warmup)));
  meter.mark();
  CHECK(meter.rate_since_mark() == meter.rate());  // nothing added since the mark
  meter.run();
  let_time_pass();
  meter.add(7);
  meter.pause();
  CHECK(meter.rate_since_mark() == Approx(7 / (meter.seconds() - second)));
  CHECK(meter.rate() == Approx(37 / (meter.seconds() - warmup)));
}

TEST_CASE("rates and the share of loading are those between two readings") {
  const Meter::Reading from{2, 10, 1}, to{6, 30, 2};  // seconds, images, seconds of loading
  CHECK(Meter::rate_between(from, to) == 5);
  CHECK(Meter::loading_between(from, to) == 0.25);
  CHECK(Meter::rate_between(from, {2, 30, 1}) == 0);
  CHECK(Meter::loading_between(from, {2, 30, 9}) == 0);
  CHECK(Meter::loading_between(from, {3, 30, 9}) == 1);
  CHECK(Meter::loading_between(from, {3, 30, 0}) == 0);
  Meter meter(true);
  CHECK_FALSE(meter.running());
  CHECK(meter.rate() == 0);
  meter.run();
  CHECK(meter.running());
  let_time_pass();
  meter.add_loading(0.25);
  meter.add_loading(0.5);
  meter.pause();
  CHECK_FALSE(meter.running());
  CHECK(meter.read().loading == 0.75);
  CHECK(meter.loading_since_mark() == Meter::loading_between({}, meter.read()));
  meter.mark();
  CHECK(meter.loading_since_mark() == 0);
}

}  // namespace
