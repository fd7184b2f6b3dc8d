// Converts errors of the CUDA runtime to dp::Error. Also sets a thread's current device.
#pragma once

#include <cuda_runtime_api.h>

#include <string>
#include <vector>

namespace dp::kernels::cuda {

// Converts errors of the CUDA runtime to dp::Error.

// Throws Error(device) "what failed on cuda:k: cudaErrorX (text)" unless `error` is cudaSuccess.
void check(cudaError_t error, const char* what);
std::string describe(cudaError_t error);  // "cudaErrorX (text)"
std::string current_device();             // "cuda:1"

// Records the names of the kernels that this thread launches. At most one object per thread.
class LaunchNames {
 public:
  LaunchNames();
  ~LaunchNames();
  LaunchNames(const LaunchNames&) = delete;
  LaunchNames& operator=(const LaunchNames&) = delete;

  std::vector<std::string> names;
};

// Checks for failures outside a context's streams that invalidate its work. They run after every wait for the streams.
class Guard {
 public:
  virtual ~Guard() = default;
  virtual void check() = 0;  // throws Aborted or Error(device) if the work is invalid
};

// The guards of one context; not owned.
using Guards = std::vector<Guard*>;

inline void check_all(const Guards& guards) {
  for (Guard* const guard : guards) guard->check();
}

}  // namespace dp::kernels::cuda
