// Return values of the runtime's calls.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

namespace dp::simt {

// All of these return the error, and store it for the calling thread until cudaGetLastError. compute-sanitizer counts
// every call that returns an error, even if the program clears it. So each failed call is a report, with the exceptions
// below.
//
// failed(): the error of a call that is used as documented. It does not report NotReady, NoDevice (the result of a
// probe) or MemoryAllocation (device memory is a control). misused(): the error of a call that breaks a documented
// rule.
cudaError_t failed(cudaError_t error, const char* call = __builtin_FUNCTION());
cudaError_t misused(cudaError_t error, const std::string& call, const std::string& what);
// Does not report: for failures that a control asked for, and for consequences of an error that has been reported.
cudaError_t unreported(cudaError_t error);
cudaError_t injected_error(const char* call = __builtin_FUNCTION());  // if this call is failing_cuda_call's
// The error of a failed device. Otherwise the injected error. Does not report.
cudaError_t sticky_error(int device, const char* call = __builtin_FUNCTION());

// Prints an error and stores it for take_reports(). Each text once.
void report(const std::string& text);
void forget_reports();

}  // namespace dp::simt
