#include <cuda_runtime_api.h>

#include <array>

namespace {

struct ErrorName {
  cudaError_t error;
  const char* name;
  const char* text;
};

// The errors that the simulation returns, with CUDA's texts.
constexpr std::array kNames{
    ErrorName{cudaSuccess, "cudaSuccess", "no error"},
    ErrorName{cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    ErrorName{cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    ErrorName{cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    ErrorName{cudaErrorInvalidMemcpyDirection, "cudaErrorInvalidMemcpyDirection",
              "copy direction is invalid for memory type"},
    ErrorName{cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    ErrorName{cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    ErrorName{cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    ErrorName{cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    ErrorName{cudaErrorIllegalAddress, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    ErrorName{cudaErrorPeerAccessAlreadyEnabled, "cudaErrorPeerAccessAlreadyEnabled", "peer access is already enabled"},
    ErrorName{cudaErrorPeerAccessUnsupported, "cudaErrorPeerAccessUnsupported",
              "peer access is not supported between these two devices"},
    ErrorName{cudaErrorIllegalState, "cudaErrorIllegalState", "the operation cannot be performed in the present state"},
    ErrorName{cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    ErrorName{cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
              "operation not permitted when stream is capturing"},
    ErrorName{cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
              "operation failed due to a previous error during capture"},
    ErrorName{cudaErrorStreamCaptureMerge, "cudaErrorStreamCaptureMerge",
              "operation would result in a merge of separate capture sequences"},
    ErrorName{cudaErrorStreamCaptureUnmatched, "cudaErrorStreamCaptureUnmatched",
              "capture was not ended in the same stream as it began"},
    ErrorName{cudaErrorStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined", "capturing stream has unjoined work"},
    ErrorName{cudaErrorStreamCaptureIsolation, "cudaErrorStreamCaptureIsolation",
              "dependency created on uncaptured work in another stream"},
    ErrorName{cudaErrorCapturedEvent, "cudaErrorCapturedEvent",
              "operation not permitted on an event last recorded in a capturing stream"},
    ErrorName{cudaErrorStreamCaptureWrongThread, "cudaErrorStreamCaptureWrongThread",
              "attempt to terminate a thread-local capture sequence from another thread"},
    ErrorName{cudaErrorLaunchOutOfResources, "cudaErrorLaunchOutOfResources",
              "too many resources requested for launch"},
    ErrorName{cudaErrorMisalignedAddress, "cudaErrorMisalignedAddress", "misaligned address"},
    ErrorName{cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    ErrorName{cudaErrorUnknown, "cudaErrorUnknown", "unknown error"},
};

const ErrorName* find(cudaError_t error) {
  for (const ErrorName& name : kNames)
    if (name.error == error) return &name;
  return nullptr;
}

}  // namespace

const char* cudaGetErrorName(cudaError_t error) {
  const ErrorName* const name = find(error);
  return name == nullptr ? "unrecognized error code" : name->name;
}

const char* cudaGetErrorString(cudaError_t error) {
  const ErrorName* const name = find(error);
  return name == nullptr ? "unrecognized error code" : name->text;
}
