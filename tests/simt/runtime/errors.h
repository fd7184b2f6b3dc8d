// What a call of the runtime returns.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

namespace dp::simt {

// Remembered for the calling thread until cudaGetLastError, and returned.
cudaError_t failed(cudaError_t error);
// A misuse that CUDA reports with few words or not at all: says in a line on the standard error what is wrong.
cudaError_t misused(cudaError_t error, const std::string& call, const std::string& what);
cudaError_t sticky_error(int device);  // of a device that has failed

// Something found wrong; kept for take_reports() and printed, each text once.
void report(const std::string& text);
void forget_reports();

}  // namespace dp::simt
