// Errors of the CUDA runtime as dp::Error.
#pragma once

#include <cuda_runtime_api.h>

#include <string>
#include <vector>

namespace dp::kernels::cuda {

// Error(device) "what: cudaErrorX (text) on cuda:k" unless `error` is cudaSuccess.
void check(cudaError_t error, const char* what);
std::string describe(cudaError_t error);  // "cudaErrorX (text)"
std::string current_device();             // "cuda:1"

// The names of the kernels that this thread launches while the object lives; at most one a thread.
class LaunchNames {
 public:
  LaunchNames();
  ~LaunchNames();
  LaunchNames(const LaunchNames&) = delete;
  LaunchNames& operator=(const LaunchNames&) = delete;

  std::vector<std::string> names;
};

}  // namespace dp::kernels::cuda
