// Converts CUDA's handles to the simulation's objects. Returns null after reporting the reason if the handle is not
// valid for this use.
#pragma once

#include <cuda_runtime_api.h>

#include "simulated_cuda/streams/stream.h"

namespace dp::simt {

Stream* as_stream(cudaStream_t handle, const char* call);
Event* as_event(cudaEvent_t handle, const char* call);
inline cudaStream_t handle_of(Stream* stream) { return reinterpret_cast<cudaStream_t>(stream); }
inline cudaEvent_t handle_of(Event* event) { return reinterpret_cast<cudaEvent_t>(event); }

}  // namespace dp::simt
