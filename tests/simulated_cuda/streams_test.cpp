// The order of work on streams, events, and when a copy reads its source.
#include <atomic>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "simulated_cuda/emulator/launch_bounds.h"
#include "simulated_cuda/kernels/primitives.h"
#include "simulated_cuda/planted/kernels.h"
#include "simulated_cuda/rig.h"
#include "support/catch.h"

namespace dp::simt::test {
namespace {

constexpr int kStreamElements = 1000;

// Blocks a stream until the host calls open().
class Gate {
 public:
  explicit Gate(cudaStream_t stream) { ok(cudaLaunchHostFunc(stream, &wait, this)); }
  void open() { open_ = true; }

 private:
  static void wait(void* self) {
    while (!static_cast<Gate*>(self)->open_) {
    }
  }
  std::atomic<bool> open_{false};
};

kernels::cuda::EventHandle timed_event() {
  cudaEvent_t event = nullptr;
  ok(cudaEventCreate(&event));
  return kernels::cuda::EventHandle(event);
}

}  // namespace

TEST_CASE("a stream does its work in order and asynchronously") {
  const FreshSimulation fresh;
  const TestStream stream;
  const DeviceArray<float> x(std::vector<float>(kStreamElements, 0)), y(std::vector<float>(kStreamElements, 0));
  Gate gate(stream);
  for (int i = 0; i < 10; ++i) {
    add_one(x, y, kStreamElements, stream);
    add_one(y, x, kStreamElements, stream);
  }
  CHECK(cudaStreamQuery(stream) == cudaErrorNotReady);
  gate.open();
  stream.finish();
  CHECK(cudaStreamQuery(stream) == cudaSuccess);
  CHECK(x.values() == std::vector<float>(kStreamElements, 20));
}

TEST_CASE("a wait applies to the record before it, not to a later one") {
  const FreshSimulation fresh;
  const TestStream first, second;
  const auto event = kernels::cuda::make_event_handle();
  CHECK(cudaEventQuery(event.get()) == cudaSuccess);  // an event that was never recorded
  ok(cudaStreamWaitEvent(second, event.get(), 0));
  second.finish();
  ok(cudaEventRecord(event.get(), first));
  ok(cudaStreamWaitEvent(second, event.get(), 0));
  Gate gate(first);
  ok(cudaEventRecord(event.get(), first));
  CHECK(cudaEventQuery(event.get()) == cudaErrorNotReady);
  second.finish();  // although the second record waits for the gate
  gate.open();
  ok(cudaEventSynchronize(event.get()));
  CHECK(cudaEventQuery(event.get()) == cudaSuccess);
}

TEST_CASE("race detector: a missing barrier and a missing wait between two streams are reported") {
  if (!detects_races()) DP_SKIP("the race build of this program has the race detector");
  for (const bool planted : {false, true}) {
    const FreshSimulation fresh;
    const TestStream first, second;
    const DeviceArray<float> x(std::vector<float>(kSteps * kRow, 1)), y(std::vector<float>(kRow, 0)),
        z(std::vector<float>(kRow, 0));
    run_row(KernelBug::missing_barrier, planted, x, y, first);
    first.finish();
    const std::vector<std::string> barrier = take_reports();
    CHECK(barrier.empty() == !planted);
    if (planted) CHECK(barrier.front().find("race in ") == 0);
    const auto event = kernels::cuda::make_event_handle();
    add_one(x, y, kRow, first);
    ok(cudaEventRecord(event.get(), first));
    if (!planted) ok(cudaStreamWaitEvent(second, event.get(), 0));
    add_one(y, z, kRow, second);
    first.finish();
    second.finish();
    const std::vector<std::string> wait = take_reports();
    CHECK(wait.empty() == !planted);
    if (planted) CHECK(wait.front().find("no event orders them") != std::string::npos);
  }
}

TEST_CASE("events with timing measure the work between them") {
  const FreshSimulation fresh;
  const TestStream stream;
  const auto begin = timed_event(), end = timed_event();
  const auto untimed = kernels::cuda::make_event_handle();
  float milliseconds = -1;
  CHECK(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()) == cudaErrorInvalidResourceHandle);
  ok(cudaEventRecord(begin.get(), stream));
  ok(cudaEventRecord(end.get(), stream));
  ok(cudaEventRecord(untimed.get(), stream));
  stream.finish();
  ok(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()));
  CHECK(milliseconds >= 0);
  CHECK(cudaEventElapsedTime(&milliseconds, begin.get(), untimed.get()) == cudaErrorInvalidResourceHandle);
  cudaGetLastError();
}

TEST_CASE("a copy reads pageable memory up to 64 KiB at once and all else later") {
#if defined(DP_THREAD_SANITIZER)
  DP_SKIP("the host overwrites what a copy reads: a race by intent");
#endif
  const FreshSimulation fresh;
  const auto later_is_seen = [](void* source, std::size_t bytes) {
    const TestStream stream;
    const DeviceArray<char> x(bytes);
    std::memset(source, 1, bytes);
    Gate gate(stream);
    ok(cudaMemcpyAsync(x, source, bytes, cudaMemcpyHostToDevice, stream));
    std::memset(source, 2, bytes);
    gate.open();
    stream.finish();
    return x.values()[bytes - 1] == 2;
  };
  std::vector<char> pageable(64 * 1024 + 1);
  const auto pinned = kernels::cuda::pinned_memory(64);
  CHECK_FALSE(later_is_seen(pageable.data(), 64 * 1024));
  CHECK(later_is_seen(pageable.data(), 64 * 1024 + 1));
  CHECK(later_is_seen(pinned.get(), 64));
}

TEST_CASE("a destroyed stream finishes its work, and its events stay valid") {
  const FreshSimulation fresh;
  const auto event = kernels::cuda::make_event_handle();
  const DeviceArray<float> x(std::vector<float>(kStreamElements, 0)), y(std::vector<float>(kStreamElements, 0));
  {
    const TestStream stream;
    add_one(x, y, kStreamElements, stream);
    ok(cudaEventRecord(event.get(), stream));
  }
  const TestStream other;
  ok(cudaStreamWaitEvent(other, event.get(), 0));
  add_one(y, x, kStreamElements, other);
  other.finish();
  CHECK(x.values() == std::vector<float>(kStreamElements, 2));
}

TEST_CASE("a stream accepts more work than its queue holds") {
  const FreshSimulation fresh;
  simulation().delays = false;
  const TestStream stream;
  std::atomic<int> calls{0};
  for (int i = 0; i < 3000; ++i)
    ok(cudaLaunchHostFunc(
        stream, [](void* n) { ++*static_cast<std::atomic<int>*>(n); }, &calls));
  stream.finish();
  CHECK(calls == 3000);
}

TEST_CASE("an event may be recorded more often than a stream's queue holds") {
  const FreshSimulation fresh;
  const TestStream stream;
  const auto event = timed_event();
  ok(cudaLaunchHostFunc(
      stream, [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }, nullptr));  // fills the queue
  for (int i = 0; i < 1500; ++i) ok(cudaEventRecord(event.get(), stream));
  ok(cudaEventSynchronize(event.get()));
  CHECK(cudaStreamQuery(stream) == cudaSuccess);
}

TEST_CASE("default streams, foreign streams and destroyed handles are rejected") {
  const FreshSimulation fresh(2);
  const DeviceArray<float> x(kStreamElements);
  CHECK(cudaMemsetAsync(x, 0, 4, nullptr) == cudaErrorInvalidResourceHandle);
  CHECK(cudaGetLastError() == cudaErrorInvalidResourceHandle);
  CHECK(cudaGetLastError() == cudaSuccess);
  CHECK(cudaMemsetAsync(x, 0, 4, cudaStreamLegacy) == cudaErrorInvalidResourceHandle);
  CHECK(cudaMemsetAsync(x, 0, 4, cudaStreamPerThread) == cudaErrorInvalidResourceHandle);
  cudaStream_t gone = nullptr;
  ok(cudaStreamCreateWithFlags(&gone, cudaStreamNonBlocking));
  ok(cudaStreamDestroy(gone));
  CHECK(cudaStreamSynchronize(gone) == cudaErrorInvalidResourceHandle);
  const TestStream stream;
  ok(cudaSetDevice(1));
  const auto event = kernels::cuda::make_event_handle();
  CHECK(cudaEventRecord(event.get(), stream) == cudaErrorInvalidResourceHandle);
  CHECK_THROWS_AS(trap(stream), Error);  // the stream's device is not current
  cudaGetLastError();
}

TEST_CASE("invalid launches throw and name the kernel") {
  const FreshSimulation fresh;
  const TestStream stream;
  const DeviceArray<int> out(1);
  for (const dim3 block : {dim3(0), dim3(1025), dim3(1, 1, 65)})
    CHECK_THROWS_WITH(write_places(out, dim3(1), block, stream), Catch::Contains("places_kernel"));
  CHECK_THROWS_WITH(write_places(out, dim3(1, 65536), dim3(1), stream), Catch::Contains("InvalidConfiguration"));
  CHECK_THROWS_AS(reverse_in_shared(nullptr, nullptr, 100000, stream), Error);
  const auto refused = [](const std::string& kernel, const std::string& size) {
    return kernel + " returned cudaErrorInvalidConfiguration: cannot be launched with a " + size;
  };
  CHECK(take_reports() == std::vector<std::string>{refused("places_kernel", "block of (0, 1, 1) threads"),
                                                   refused("places_kernel", "block of (1025, 1, 1) threads"),
                                                   refused("places_kernel", "block of (1, 1, 65) threads"),
                                                   refused("places_kernel", "grid of (1, 65536, 1) blocks"),
                                                   refused("reverse_kernel", "block of (100000, 1, 1) threads")});
}

TEST_CASE("shared memory beyond 48 KiB must be requested by function and device, up to the device's limit") {
  const FreshSimulation fresh(2);
  constexpr std::size_t kMuch = 48 * 1024 + 64;
  const DeviceArray<float> y(kRow);
  const TestStream stream;
  CHECK(use_dynamic_shared(false, kMuch, y, stream) == cudaErrorInvalidValue);
  CHECK(use_dynamic_shared(true, kMuch, y, stream) == cudaSuccess);
  CHECK(use_dynamic_shared(false, 227 * 1024, y, stream) == cudaSuccess);
  CHECK(use_dynamic_shared(false, 227 * 1024 + 4, y, stream) == cudaErrorInvalidValue);
  stream.finish();
  ok(cudaSetDevice(1));
  const DeviceArray<float> other_y(kRow);
  const TestStream other;
  CHECK(use_dynamic_shared(false, kMuch, other_y, other) == cudaErrorInvalidValue);
  static const char code[2] = {};  // stands in for a function: the simulation reads the bytes before it, too
  const auto allow = [](int bytes) {
    return cudaFuncSetAttribute(code + 1, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  };
  const std::pair<int, int> most[] = {{75, 64}, {80, 163}, {86, 99}, {89, 99}, {90, 227}, {100, 227}, {120, 99}};
  for (const auto& [capability, kib] : most) {
    simulation().compute_capability = capability;
    CHECK(allow(kib * 1024) == cudaSuccess);
    CHECK(allow(kib * 1024 + 1) == cudaErrorInvalidValue);
  }
  cudaGetLastError();
  const auto refused = [](const std::string& asked, const std::string& allowed) {
    return "dynamic_shared_kernel returned cudaErrorInvalidValue: cannot be launched with " + asked +
           " bytes of dynamic shared memory, 0 static ones; it may have " + allowed;
  };
  const std::string by_default = "49152 dynamic ones, and 49152 of both, until cudaFuncSetAttribute allows more on ";
  CHECK(take_reports() ==
        std::vector<std::string>{refused("49216", by_default + "cuda:0"),
                                 refused("232452", "232448 dynamic ones, and 232448 of both"),
                                 refused("49216", by_default + "cuda:1"),
                                 "cudaFuncSetAttribute returned cudaErrorInvalidValue"});  // seven calls, one report
}

TEST_CASE("static shared memory is an attribute of its function once a block has declared it") {
  const FreshSimulation fresh;
  const DeviceArray<float> y(kRow);
  const TestStream stream;
  use_both_shared(false, y, stream);
  stream.finish();
  CHECK(static_shared_of_both() == sizeof(float));
}

TEST_CASE("launch bounds are an attribute of their function") {
  if (!kKnowsLaunchBounds) return;
  CHECK((threads_of(true) == kRow || threads_of(true) == kRow + 32));  // rounded up to 32 or to 64
  CHECK(threads_of(false) == 1024);
}

TEST_CASE("streams have priorities") {
  const FreshSimulation fresh;
  int lowest = 0, highest = 0;
  ok(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
  CHECK(highest < lowest);
  cudaStream_t stream = nullptr;
  ok(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, highest));
  int priority = 0;
  ok(cudaStreamGetPriority(stream, &priority));
  CHECK(priority == highest);
  ok(cudaStreamDestroy(stream));
}

}  // namespace dp::simt::test
