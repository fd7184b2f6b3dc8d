// Helpers for tests of the simulation: a fresh simulation per test case, arrays on a device, all thread orders.
#pragma once

#include <cuda_runtime_api.h>

#include <string>
#include <vector>

#include "dp/error.h"
#include "kernels/device/cuda/runtime.h"
#include "simulated_cuda/simulation.h"

namespace dp::simt::test {

// Resets the simulation to its defaults on construction and destruction. `devices`: number of simulated devices.
class FreshSimulation {
 public:
  explicit FreshSimulation(int devices = 1) {
    reset();
    simulation().devices = devices;
  }
  ~FreshSimulation() { reset(); }
  FreshSimulation(const FreshSimulation&) = delete;
  FreshSimulation& operator=(const FreshSimulation&) = delete;
};

inline void ok(cudaError_t error) { kernels::cuda::check(error, "a call of the test"); }

// An array on the current device.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(std::size_t size) : size_(size), memory_(kernels::cuda::device_memory(size * sizeof(T))) {}
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    ok(cudaMemcpy(get(), values.data(), size_ * sizeof(T), cudaMemcpyHostToDevice));
  }
  T* get() const { return static_cast<T*>(memory_.get()); }
  operator T*() const { return get(); }
  std::size_t bytes() const { return size_ * sizeof(T); }
  std::vector<T> values() const {
    std::vector<T> copy(size_);
    ok(cudaMemcpy(copy.data(), get(), bytes(), cudaMemcpyDeviceToHost));
    return copy;
  }

 private:
  std::size_t size_;
  kernels::cuda::DeviceMemory memory_;
};

class TestStream {
 public:
  TestStream() : handle_(kernels::cuda::make_stream_handle()) {}
  operator cudaStream_t() const { return handle_.get(); }
  void finish() const { ok(cudaStreamSynchronize(handle_.get())); }

 private:
  kernels::cuda::StreamHandle handle_;
};

struct Schedule {
  ThreadOrder order;
  AsyncCopy copies;
  unsigned resident_blocks;
  unsigned seed = 1;
};
// All combinations of thread order and cp.async mode, each with one or with several resident blocks.
inline const std::vector<Schedule>& schedules() {
  static const std::vector<Schedule> all{
      {ThreadOrder::forward, AsyncCopy::eager, 2}, {ThreadOrder::forward, AsyncCopy::lazy, 1},
      {ThreadOrder::reverse, AsyncCopy::eager, 3}, {ThreadOrder::reverse, AsyncCopy::lazy, 1},
      {ThreadOrder::random, AsyncCopy::random, 2}, {ThreadOrder::random, AsyncCopy::random, 4, 2},
  };
  return all;
}
inline void use(const Schedule& schedule) {
  simulation().order = schedule.order;
  simulation().async_copy = schedule.copies;
  simulation().seed = schedule.seed;
  simulation().resident_blocks = schedule.resident_blocks;
}

}  // namespace dp::simt::test
