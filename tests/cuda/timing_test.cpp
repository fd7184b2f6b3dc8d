// Seconds of work by label, as the devices measure them.
#include <chrono>
#include <numeric>
#include <thread>

#include "cuda/narrow_nets.h"
#include "cuda/simulated_gpus.h"
#include "kernels/cuda/context.h"
#include "simt/sleep.h"

using namespace dp;
using namespace dp::kernels;
using namespace dp::test;
using simt::sleep_in;

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

double sum_of(const LabelSeconds& seconds) { return std::accumulate(seconds.begin(), seconds.end(), 0.0); }

}  // namespace

TEST_CASE(
    "simulated GPUs: work is timed by label; waiting and resting are left out, and nothing waits for the device") {
  SimulatedGpus machine(1);
  cuda::CudaContext context({DeviceKind::cuda, 0}, {});
  const auto first = context.make_stream(), second = context.make_stream();
  const auto done = context.make_event();
  cuda::CudaStream& one = cuda::of_cuda(*first);
  cuda::CudaStream& two = cuda::of_cuda(*second);
  const auto begin = Clock::now();
  one.label(1);
  sleep_in(one.work(), 30);
  one.label(2);
  sleep_in(one.work(), 20);
  two.label(3);
  sleep_in(two.work(), 80);
  two.record(*done);
  one.wait(*done);  // for 30 ms
  sleep_in(one.work(), 10);
  const LabelSeconds early = context.take_seconds();
  const double asked = seconds_since(begin);
  one.synchronize();
  std::this_thread::sleep_for(std::chrono::milliseconds(30));  // a rest
  one.label(4);
  sleep_in(one.work(), 5);
  LabelSeconds late = context.take_seconds();
  one.synchronize();
  const double passed = seconds_since(begin);
  const LabelSeconds last = context.take_seconds();
  if (asked < 0.03) CHECK(sum_of(early) == 0);
  for (std::size_t label = 0; label < kLabels; ++label) late[label] += early[label] + last[label];
  CHECK(late[0] == 0);
  CHECK(late[1] >= 0.030);
  CHECK(late[2] >= 0.020 + 0.010);
  CHECK(late[3] >= 0.080);
  CHECK(late[4] >= 0.005);
  // One stream cannot have worked while it waited, at least 80 - 50 ms less what it began late, and rested.
  CHECK(late[1] + late[2] + late[4] <= passed - 0.030);
  CHECK(late[3] <= passed - 0.030);
  CHECK(sum_of(context.take_seconds()) == 0);
}

TEST_CASE("simulated GPUs: more changes of label than the timer has places lose time, never order") {
  SimulatedGpus machine(1);
  simt::simulation().delays = false;
  cuda::CudaContext context({DeviceKind::cuda, 0}, {});
  const auto stream = context.make_stream();
  cuda::CudaStream& one = cuda::of_cuda(*stream);
  sleep_in(one.native(), 50);  // keeps everything behind it from being reached
  const auto begin = Clock::now();
  for (int i = 0; i < 400; ++i) {
    one.label(static_cast<std::size_t>(1 + i % 2));
    one.work();
  }
  one.label(3);
  sleep_in(one.work(), 20);
  one.synchronize();
  const LabelSeconds full = context.take_seconds();
  CHECK(full[1] + full[2] <= seconds_since(begin));
  CHECK(full[3] == 0);  // found no place
  one.label(3);
  sleep_in(one.work(), 20);
  context.take_seconds();
  one.synchronize();
  const LabelSeconds again = context.take_seconds();
  CHECK(again[3] >= 0.020);
  CHECK(again[1] + again[2] == 0);
}

TEST_CASE("simulated GPUs: each replica's phases are timed, evaluations are not") {
  SimulatedGpus machine(2);
  const Model model = narrow_convnet();
  DataParallel net(model, on_gpus(2, 2));
  const Batch batch = random_batch(model, 8);
  const auto begin = Clock::now();
  for (int step = 0; step < 3; ++step) net.train_step(batch, {.lr = 0.01f});
  net.take_stats();
  net.train_step(batch, {.lr = 0.01f});  // its times are taken by later steps, those of the others by now
  const double passed = seconds_since(begin);
  for (const PhaseTimes& times : net.take_phase_times()) {
    for (const double part :
         {times.scatter, times.forward, times.backward, times.reduce, times.update, times.broadcast})
      CHECK(part > 0);
    CHECK(times.scatter + times.forward + times.backward <= passed);
    CHECK(times.reduce + times.update + times.broadcast <= passed);
  }
  net.take_stats();
  net.train_step(batch, {.lr = 0.01f});
  net.take_stats();
  net.take_phase_times();
  const auto evaluated = Clock::now();
  for (int i = 0; i < 24; ++i) net.evaluate(batch);
  net.take_stats();
  const double evaluation = seconds_since(evaluated);
  net.train_step(batch, {.lr = 0.01f});
  for (const PhaseTimes& times : net.take_phase_times())
    CHECK(times.forward <= evaluation / 2);  // of this step and the one before
}
