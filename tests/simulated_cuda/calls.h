// CUDA calls for tests that use the backend only through its public interface.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace dp::simt {

struct Priorities {
  int lowest = 1, highest = 1;
};
inline Priorities stream_priorities() {
  Priorities range;
  cudaDeviceGetStreamPriorityRange(&range.lowest, &range.highest);
  return range;
}
inline int priority_of(cudaStream_t stream) {
  int priority = 1;
  cudaStreamGetPriority(stream, &priority);
  return priority;
}

inline cudaError_t copy_in(cudaStream_t stream, void* to, const void* from, std::size_t bytes) {
  return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
}
inline cudaError_t wait_for(cudaStream_t stream) { return cudaStreamSynchronize(stream); }

}  // namespace dp::simt
