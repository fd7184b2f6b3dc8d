// Converts errors of the CUDA runtime to dp::Error.
#pragma once

#include <cuda_runtime_api.h>

#include <string>
#include <vector>

namespace dp::kernels::cuda {

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

}  // namespace dp::kernels::cuda
