// What a call of the runtime returns.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

namespace dp::simt {

// All of these are remembered for the calling thread until cudaGetLastError, and returned. compute-sanitizer counts every call that
// returns an error, whether or not the program clears it: so each is a report, but for what follows.
//
// What a call returns that is used as documented. No reports are NotReady, NoDevice (the answer of a probe), and MemoryAllocation: the
// memory of a device is a control.
cudaError_t failed(cudaError_t error, const char* call = __builtin_FUNCTION());
cudaError_t misused(cudaError_t error, const std::string& call, const std::string& what);
// No report: a failure that a control asks for, and what follows from an error that has been reported.
cudaError_t unreported(cudaError_t error);
cudaError_t sticky_error(int device);  // of a device that has failed; its failure was reported

// Something found wrong; kept for take_reports() and printed, each text once.
void report(const std::string& text);
void forget_reports();

}  // namespace dp::simt
