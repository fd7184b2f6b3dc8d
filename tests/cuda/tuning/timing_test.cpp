// Seconds of work per label, as measured by the devices.
#include <atomic>
#include <chrono>
#include <map>
#include <numeric>
#include <set>
#include <thread>

#include "cuda/engine/narrow_nets.h"
#include "cuda/simulated_gpus.h"
#include "kernels/device/cuda/context.h"
#include "kernels/tuning/trial.h"
#include "observe/timeline.h"
#include "simulated_cuda/sleep.h"
#include "support/temporary_folder.h"

using namespace dp;
using namespace dp::kernels;
using namespace dp::test;
using simt::sleep_in;

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

Timeline timeline_of(const DataParallelOptions& options, int steps) {
  const TemporaryFolder temp;
  const Model model = narrow_convnet();
  DataParallel net(model, options);
  for (int step = 0; step < steps; ++step) net.train_step(random_batch(model, 8), Sgd{.lr = 0.01f});
  net.write_trace(temp / "trace.json");
  return read_timeline(read_text(temp / "trace.json"));
}

double sum_of(const LabelSeconds& seconds) { return std::accumulate(seconds.begin(), seconds.end(), 0.0); }

}  // namespace

TEST_CASE("simulated GPUs: work is timed by label without waits and pauses, and timing does not wait for the device") {
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
  one.wait(*done);  // waits for 30 ms
  sleep_in(one.work(), 10);
  const LabelSeconds early = context.take_seconds();
  const double asked = seconds_since(begin);
  one.synchronize();
  two.synchronize();
  std::this_thread::sleep_for(std::chrono::milliseconds(30));  // idle time
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
  // The first stream cannot work while it waits (at least 80 - 50 ms, less its late start) and while it is idle.
  CHECK(late[1] + late[2] + late[4] <= passed - 0.030);
  CHECK(late[3] <= passed - 0.030);
  CHECK(sum_of(context.take_seconds()) == 0);
}

TEST_CASE("simulated GPUs: more label changes than the timer holds lose time, never order") {
  SimulatedGpus machine(1);
  simt::simulation().delays = false;
  cuda::CudaContext context({DeviceKind::cuda, 0}, {});
  const auto stream = context.make_stream();
  cuda::CudaStream& one = cuda::of_cuda(*stream);
  std::atomic<bool> released = false;  // blocks the work that follows
  simt::hold(one.native(), released);
  const auto begin = Clock::now();
  for (int i = 0; i < 400; ++i) {
    one.label(static_cast<std::size_t>(1 + i % 2));
    one.work();
  }
  one.label(3);
  sleep_in(one.work(), 20);
  released = true;
  released.notify_one();
  one.synchronize();
  const LabelSeconds full = context.take_seconds();
  CHECK(full[1] + full[2] <= seconds_since(begin));
  CHECK(full[3] == 0);  // the timer had no free slot
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
  for (int step = 0; step < 3; ++step) net.train_step(batch, Sgd{.lr = 0.01f});
  net.take_stats();
  net.train_step(batch, Sgd{.lr = 0.01f});  // its times arrive later; those before are complete
  const double passed = seconds_since(begin);
  for (const PhaseTimes& times : net.take_phase_times()) {
    for (const double part :
         {times.scatter, times.forward, times.backward, times.reduce, times.update, times.broadcast})
      CHECK(part > 0);
    CHECK(times.scatter + times.forward + times.backward <= passed);
    CHECK(times.reduce + times.update + times.broadcast <= passed);
  }
  net.take_stats();
  const auto first = Clock::now();
  net.train_step(batch, Sgd{.lr = 0.01f});
  net.take_stats();
  net.take_phase_times();
  double steps = seconds_since(first);
  for (int i = 0; i < 24; ++i) net.evaluate(batch);
  net.take_stats();
  const auto second = Clock::now();
  net.train_step(batch, Sgd{.lr = 0.01f});
  const std::vector<PhaseTimes> all = net.take_phase_times();
  steps += seconds_since(second);
  for (const PhaseTimes& times : all) CHECK(times.forward <= steps);  // of both steps, a fraction of 24 evaluations
}

TEST_CASE("simulated GPUs: a recorded span covers the device's work and no wait") {
  SimulatedGpus machine(1);
  cuda::CudaContext context({DeviceKind::cuda, 0}, {});
  const auto first = context.make_stream(), second = context.make_stream();
  const auto done = context.make_event(), before = context.make_event();
  cuda::CudaStream& one = cuda::of_cuda(*first);
  TraceRing ring(100);
  one.trace(&ring);
  const auto piece = [&](std::size_t label, std::uint64_t detail, int milliseconds) {
    one.label(label);
    one.detail(detail);
    sleep_in(one.work(), milliseconds);
    one.count_bytes(static_cast<std::size_t>(10 * milliseconds));
    one.worked();
  };
  piece(1, 2, 5);
  const std::int64_t begin = trace_clock();
  ring.recording = true;
  ring.step = 7;
  piece(1, 2, 20);
  piece(1, 4, 10);
  first->record(*before);
  second->wait(*before);
  sleep_in(cuda::of_cuda(*second).native(), 80);
  second->record(*done);
  first->wait(*done);
  ring.step = 8;
  piece(1, 4, 10);
  ring.recording = false;
  piece(1, 6, 5);
  one.trace(&ring);
  const std::int64_t end = trace_clock();
  REQUIRE(ring.size() == 3);
  CHECK(ring.dropped() == 0);
  // The host's and the device's clock agree to a few microseconds, unless the core is busy when they are compared.
  constexpr std::int64_t kClocks = 100'000'000;
  constexpr std::int64_t kRounding = 10'000;  // CUDA gives times as float: ten seconds to a microsecond
  std::int64_t last = begin;
  for (std::size_t i = 0; i < 3; ++i) {
    const TraceSpan& span = ring.span(i);
    const std::int64_t asked = i == 0 ? 20 : 10;
    CHECK(span.label == 1);
    CHECK(span.detail == (i == 0 ? 2 : 4));
    CHECK(span.step == (i == 2 ? 8 : 7));
    CHECK(span.bytes == 10 * asked);
    CHECK(span.begin >= last - (i == 0 ? kClocks : kRounding));
    CHECK(span.end - span.begin >= asked * 1'000'000 - 1000);
    last = span.end;
  }
  CHECK(last <= end + kClocks);
  CHECK(ring.span(2).begin - ring.span(1).end >= 80'000'000 - kRounding);
}

TEST_CASE("simulated GPUs: spans beyond the capacity of the trace are counted as dropped") {
  SimulatedGpus machine(1);
  simt::simulation().delays = false;
  cuda::CudaContext context({DeviceKind::cuda, 0}, {});
  const auto stream = context.make_stream();
  cuda::CudaStream& one = cuda::of_cuda(*stream);
  TraceRing ring(10000);
  one.trace(&ring);
  ring.recording = true;
  one.label(1);
  one.work();
  std::atomic<bool> released = false;  // blocks the work that follows
  simt::hold(one.native(), released);
  for (std::uint64_t i = 1; i <= 900; ++i) {
    one.detail(2 * i);
    one.work();
  }
  released = true;
  released.notify_one();
  one.trace(&ring);
  CHECK(ring.size() >= 700);
  CHECK(ring.dropped() > 0);
  CHECK(ring.size() + ring.dropped() == 901);
}

TEST_CASE("simulated GPUs: a layer's floor is its arithmetic or its memory traffic at the rates of the device") {
  SimulatedGpus machine(1);
  DataParallelOptions options = on_gpus(1, 1);
  options.trace_steps = 2;
  DataParallel net(narrow_convnet(), options);
  for (int step = 0; step < 2; ++step) net.train_step(random_batch(net.model(), 8), Sgd{.lr = 0.01f});
  const auto layers = net.layer_times();
  // No cuBLASLt here: 4 multiprocessors with 128 multiply-adds per cycle at 1.5 GHz. The copy is measured, once.
  const Rates rates = cuda::measured_rates(0, DType::f32, cuda::options_of_device(0));
  CHECK(rates.flops == 2.0 * 4 * 128 * 1.5e9);
  CHECK(rates.bytes > 1e6);
  CHECK(rates.source == "arithmetic by its clocks; a copy of 2 MiB, bytes read and written");
  // conv2: 8 images, from 4 channels of 12x12 to 8 of 10x10, 3x3 without padding.
  const double flops = 2.0 * 8 * 8 * 100 * 9 * 4, bytes = 4.0 * (8 * 4 * 144 + 8 * 4 * 9 + 8 * 8 * 100);
  bool found = false;
  for (const LayerTime& layer : layers)
    if (layer.name.starts_with("conv2") && layer.name.ends_with("backward_weights")) {
      found = true;
      CHECK(layer.floor_seconds == Approx(std::max(flops / rates.flops, bytes / rates.bytes)));
      CHECK(layer.seconds > 0);
    }
  CHECK(found);
}

TEST_CASE("simulated GPUs: the timeline has the work of every stream, every bucket, and the theoretical bytes") {
  for (const int count : {2, 3}) {
    SimulatedGpus machine(count);
    DataParallelOptions options = on_gpus(count, count);
    options.reduce = Reduce::all_reduce;
    options.bucket_bytes = 1000;
    const std::vector<std::int64_t> elements =
        bucket_elements(DataParallel(narrow_convnet(), options).describe_plan(8));
    REQUIRE(elements.size() > 2);
    options.trace_first = 1;
    options.trace_steps = 2;
    const Timeline timeline = timeline_of(options, 4);
    CHECK(timeline.steps == 2);
    CHECK(timeline.dropped == 0);
    std::map<std::pair<std::int64_t, std::int64_t>, std::int64_t> bytes;  // by step and bucket
    for (int replica = 0; replica < count; ++replica) {
      std::set<std::pair<std::int64_t, std::int64_t>> reduced, all;
      for (const Span& span : timeline.of(replica, "reduce")) {
        CHECK(span.thread == 2);
        reduced.insert({span.step, span.bucket});
        bytes[{span.step, span.bucket}] += span.bytes;
      }
      for (const std::int64_t step : {1, 2})
        for (std::size_t bucket = 0; bucket < elements.size(); ++bucket)
          all.insert({step, static_cast<std::int64_t>(bucket)});
      CHECK(reduced == all);
      std::set<std::string> names;
      for (const Span& span : timeline.of(replica, "backward"))
        if (span.thread == 1) names.insert(span.name);
      CHECK(names.contains("conv1+relu backward_weights"));
      for (const int thread : {1, 2}) {
        double last = 0;
        for (const Span& span : timeline.spans) {
          if (span.process != replica || span.thread != thread) continue;
          CHECK(span.begin >= last - 1);
          last = span.end;
        }
        CHECK(last > 0);
      }
    }
    for (std::size_t bucket = 0; bucket < elements.size(); ++bucket)
      for (const std::int64_t step : {1, 2})
        CHECK(bytes[{step, static_cast<std::int64_t>(bucket)}] == 2 * (count - 1) * elements[bucket] * 4);
  }
}
