// Bugs in the order of calls: calls that wait for the driver, unchecked errors, captures, failed devices.
#include <atomic>
#include <memory>
#include <thread>

#include "simulated_cuda/driver_lock.h"
#include "simulated_cuda/foreign_work.h"
#include "simulated_cuda/planted/bugs.h"
#include "simulated_cuda/planted/kernels.h"
#include "simulated_cuda/rig.h"

namespace dp::simt::test {
namespace {

constexpr int kCount = 60;

// A library's kernel on cuda:0 that spins until its counterpart is launched on cuda:1.
class SpinningKernels {
 public:
  SpinningKernels() {
    simulation().devices = 2;
    ok(cudaSetDevice(1));
    second_ = std::make_unique<TestStream>();
    ok(cudaSetDevice(0));
  }
  void launch_first() {
    set_spinning(this, "a kernel on cuda:0, which waits for cuda:1");
    ok(enqueue(first_, {"a spinning kernel", spin, this}));
  }
  void launch_second() {
    set_spinning(this, {});
    ok(enqueue(*second_, {"its other half", [](const ForeignWork& work, int, std::uint32_t) { release(work); }, this}));
  }
  ~SpinningKernels() {
    first_.finish();
    second_->finish();
  }
  SpinningKernels(const SpinningKernels&) = delete;
  SpinningKernels& operator=(const SpinningKernels&) = delete;

 private:
  static SpinningKernels& of(const ForeignWork& work) { return *static_cast<SpinningKernels*>(work.data); }
  static void release(const ForeignWork& work) { of(work).launched_ = true; }
  static void spin(const ForeignWork& work, int, std::uint32_t) {
    while (!of(work).launched_) std::this_thread::yield();
  }

  TestStream first_;
  std::unique_ptr<TestStream> second_;
  std::atomic<bool> launched_{false};
};

// Correct: call() before the spinning kernel. Planted: call() while it spins, so that it may wait for the kernel.
template <class Call>
bool calls_before(bool planted, Call&& call) {
  SpinningKernels kernels;
  if (!planted) call();
  kernels.launch_first();
  const std::uint64_t before = blocking_calls();
  std::thread late;
  if (planted) late = std::thread(call);
  while (planted && blocking_calls() == before) std::this_thread::yield();
  kernels.launch_second();
  if (planted) late.join();
  return true;
}

bool allocates_before(bool planted) {
  kernels::cuda::DeviceMemory memory;
  return calls_before(planted, [&] { memory = kernels::cuda::device_memory(64); });
}

bool frees_before(bool planted) {
  kernels::cuda::PinnedMemory memory = kernels::cuda::pinned_memory(64);
  return calls_before(planted, [&] { const kernels::cuda::PinnedMemory freed = std::move(memory); });
}

bool copies_pinned(bool planted) {
  const std::vector<float> host(kCount, 1);
  const DeviceArray<float> x(kCount);
  const TestStream stream;
  return calls_before(planted, [&] {
    ok(cudaMemcpyAsync(x, host.data(), x.bytes(), cudaMemcpyHostToDevice, stream));
    stream.finish();
  });
}

bool loads_before(bool planted) {
  const DeviceArray<float> x(std::vector<float>(kCount, 1));
  const TestStream stream;
  return calls_before(planted, [&] {
    add_one(x, x, kCount, stream);
    stream.finish();
  });
}

bool uploads_graphs_before(bool planted) {
  const DeviceArray<float> x(std::vector<float>(kCount, 1));
  const TestStream stream;
  ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  ok(cudaMemsetAsync(x, 0, x.bytes(), stream));
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  ok(cudaStreamEndCapture(stream, &graph));
  ok(cudaGraphInstantiate(&exec, graph, 0));
  const bool right = calls_before(planted, [&] {
    ok(cudaGraphUpload(exec, stream));
    stream.finish();
  });
  ok(cudaGraphExecDestroy(exec));
  ok(cudaGraphDestroy(graph));
  return right;
}

bool enables_peers_once(bool planted) {
  simulation().devices = 2;
  simulation().set_peers(Peer::works);
  ok(cudaDeviceEnablePeerAccess(1, 0));
  if (planted) {
    cudaDeviceEnablePeerAccess(1, 0);
    cudaGetLastError();
  }
  return true;
}

bool joins_back(bool planted) {
  const TestStream first, second;
  const auto fork = kernels::cuda::make_event_handle(), join = kernels::cuda::make_event_handle();
  const DeviceArray<float> x(std::vector<float>(kCount, 1));
  ok(cudaStreamBeginCapture(first, cudaStreamCaptureModeThreadLocal));
  ok(cudaMemsetAsync(x, 0, x.bytes(), first));
  ok(cudaEventRecord(fork.get(), first));
  ok(cudaStreamWaitEvent(second, fork.get(), 0));
  if (!planted) {
    ok(cudaEventRecord(join.get(), second));
    ok(cudaStreamWaitEvent(first, join.get(), 0));
  }
  cudaGraph_t graph = nullptr;
  ok(cudaStreamEndCapture(first, &graph));
  ok(cudaGraphDestroy(graph));
  return true;
}

// cuda:0 fails before it records the event that cuda:1 waits for.
bool leaves_peers_alone(bool planted) {
  simulation().devices = 2;
  const TestStream first;
  const auto event = kernels::cuda::make_event_handle();
  const DeviceArray<float> x(std::vector<float>(kCount, 1));
  ok(cudaSetDevice(1));
  const TestStream second;
  ok(cudaSetDevice(0));
  simulation().failing_kernel = {.device = 0, .number = 1};
  add_one(x, x, kCount, first);
  const cudaError_t recorded = cudaEventRecord(event.get(), first);
  cudaStreamSynchronize(first);
  ok(cudaSetDevice(1));
  ok(cudaStreamWaitEvent(second, event.get(), 0));
  if (planted)
    second.finish();
  else if (cudaStreamQuery(second) == cudaSuccess)
    return recorded != cudaSuccess;  // the program noticed it early enough
  return true;
}

}  // namespace

std::vector<PlantedBug> planted_driver_bugs() {
  return {
      {"late_allocation", "memory is allocated while a collective waits for a launch", false, allocates_before},
      {"late_free", "pinned memory is freed while a collective waits for a launch", false, frees_before},
      {"late_pageable_copy", "ordinary memory is copied while a collective waits for a launch", false, copies_pinned},
      {"late_module_load", "a kernel is used for the first time while a collective waits for a launch", false,
       loads_before},
      {"late_graph_upload", "a graph is uploaded while a collective waits for a launch", false, uploads_graphs_before},
      {"swallowed_error", "peer access is enabled twice, and the error is cleared", false, enables_peers_once},
      {"unjoined_stream", "a stream joins a capture, does nothing there, and does not come back", false, joins_back},
      {"wait_for_failed_device", "the host waits for a device that waits for one that has failed", false,
       leaves_peers_alone},
  };
}

}  // namespace dp::simt::test
