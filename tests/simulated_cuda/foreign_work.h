// Work on streams of libraries that are simulated beside CUDA.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace dp::simt {

struct ForeignWork {
  const char* name;
  void (*run)(const ForeignWork& work, int device, std::uint32_t operation);  // on the stream's thread; may block it
  void* data;
  // Called by who enqueues it, once for each time that it will run: once, or at every launch of a graph that holds it. Gives the data
  // of that time. Null: `data` serves them all.
  void* (*launched)(void* data) = nullptr;
  // Instead of `run` where the device has failed. May be null.
  void (*dropped)(const ForeignWork& work) = nullptr;
  // Called for each graph, and each instance of one, that holds the work: 1 when it is made, -1 when it is destroyed. May be null.
  void (*held)(void* data, int by) = nullptr;
};

cudaError_t enqueue(cudaStream_t stream, const ForeignWork& work);
int device_of(cudaStream_t stream);             // -1 where there is no such stream
std::uint64_t capture_of(cudaStream_t stream);  // a number of its own for each; 0: it is not captured

// Called by `run`: what the work reads and writes, for the race detector and the thread sanitizer.
struct TouchedMemory {
  const void* begin;
  std::size_t bytes;
  bool written;
};
void announce(const ForeignWork& work, int device, std::uint32_t operation, const std::vector<TouchedMemory>& touched);

}  // namespace dp::simt
