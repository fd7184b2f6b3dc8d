// Training time and throughput: what counts.
#include "engine/train/passes.h"

#include "support/catch.h"
#include "support/fake_time.h"
#include "train/tiny_run.h"

namespace {

using dp::Meter;
using dp::test::TimeOfRates;

TEST_CASE("the clock runs between run and pause only") {
  TimeOfRates time;
  Meter meter(true);
  time.pass(1);
  CHECK(meter.seconds() == 0);
  meter.run();
  time.pass(2);
  meter.run();  // resumes
  CHECK(meter.seconds() == 2);
  meter.pause();
  time.pass(4);
  CHECK(meter.seconds() == 2);
  meter.run();
  time.pass(8);
  meter.pause();
  CHECK(meter.seconds() == 10);
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
  TimeOfRates time;
  dp::TrainerOptions options = dp::test::tiny_options();
  options.epochs = 1;
  dp::TrainerCallbacks callbacks;
  callbacks.on_step = [&](const dp::StepReport& report) { time.pass(report.step == 1 ? 4 : 0.5); };
  // The warm-up ends with step 2, before its report, because more than a second has passed. Five steps follow it, of
  // 204 images, and six reports.
  const dp::RunSummary summary = dp::test::tiny_run(options, callbacks);
  CHECK(summary.seconds_train == 4 + 6 * 0.5);
  CHECK(summary.images_per_second == 204 / 3.0);
}

TEST_CASE("the rate excludes the warm-up and everything before a mark") {
  TimeOfRates time;
  Meter meter(true);
  const auto train = [&](double seconds, std::int64_t images) {
    meter.run();
    time.pass(seconds);
    meter.add(images);
    meter.pause();
  };
  train(4, 1000);
  CHECK(meter.rate() == 250);  // nothing followed the warm-up: the rate covers everything
  meter.end_warmup();
  CHECK(meter.rate() == 250);
  train(2, 30);
  CHECK(meter.rate() == 15);
  meter.mark();
  CHECK(meter.rate_since_mark() == 15);  // nothing added since the mark
  train(0.5, 7);
  CHECK(meter.rate_since_mark() == 14);
  CHECK(meter.rate() == 37 / 2.5);
}

TEST_CASE("rates and the share of loading are those between two readings") {
  const Meter::Reading from{2, 10, 1}, to{6, 30, 2};  // seconds, images, seconds of loading
  CHECK(Meter::rate_between(from, to) == 5);
  CHECK(Meter::loading_between(from, to) == 0.25);
  CHECK(Meter::rate_between(from, {2, 30, 1}) == 0);
  CHECK(Meter::loading_between(from, {2, 30, 9}) == 0);
  CHECK(Meter::loading_between(from, {3, 30, 9}) == 1);
  CHECK(Meter::loading_between(from, {3, 30, 0}) == 0);
  TimeOfRates time;
  Meter meter(true);
  CHECK_FALSE(meter.running());
  CHECK(meter.rate() == 0);
  meter.run();
  CHECK(meter.running());
  time.pass(1);
  meter.add_loading(0.25);
  meter.add_loading(0.5);
  meter.pause();
  CHECK_FALSE(meter.running());
  CHECK(meter.read().loading == 0.75);
  CHECK(meter.loading_since_mark() == 0.75);
  meter.mark();
  CHECK(meter.loading_since_mark() == 0);
}

}  // namespace
