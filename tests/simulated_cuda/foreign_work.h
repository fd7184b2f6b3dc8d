// Stream work of the simulated libraries: NCCL, cuDNN, cuBLASLt.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace dp::simt {

struct ForeignWork {
  const char* name;
  void (*run)(const ForeignWork& work, int device, std::uint32_t operation);  // on the stream's thread; may block
  void* data;
  // Called on the enqueuing thread, once per execution: once for a direct call, once per launch of a graph that
  // contains the work. Returns the data of this execution. If null, every execution gets `data`.
  void* (*launched)(void* data) = nullptr;
  // Called in place of `run` if the device has failed. May be null.
  void (*dropped)(const ForeignWork& work) = nullptr;
  // Reference count of graphs and instantiated graphs that contain the work: +1 when one is made, -1 when it is
  // destroyed. May be null.
  void (*held)(void* data, int by) = nullptr;
};

cudaError_t enqueue(cudaStream_t stream, const ForeignWork& work);
int device_of(cudaStream_t stream);             // -1 if the stream does not exist
std::uint64_t capture_of(cudaStream_t stream);  // unique id of the capture; 0 if the stream is not captured

// Called by `run`: reports the memory that the work reads and writes to the race detector and the thread sanitizer.
struct TouchedMemory {
  const void* begin;
  std::size_t bytes;
  bool written;
};
void announce(const ForeignWork& work, int device, std::uint32_t operation, const std::vector<TouchedMemory>& touched);

}  // namespace dp::simt
