// Errors of the CUDA runtime as dp::Error.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

namespace dp::kernels::cuda {

// Error(device) "what: cudaErrorX (text) on cuda:k" unless `error` is cudaSuccess.
void check(cudaError_t error, const char* what);
std::string describe(cudaError_t error);  // "cudaErrorX (text)"
std::string current_device();             // "cuda:1"

}  // namespace dp::kernels::cuda
