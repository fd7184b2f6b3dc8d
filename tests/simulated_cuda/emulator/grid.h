// One kernel launch, executed synchronously on the calling thread, a few blocks at a time.
#pragma once

#include <driver_types.h>
#include <vector_types.h>

#include <cstddef>
#include <string>

namespace dp::simt {

struct Grid {
  const char* kernel;
  int device;
  dim3 grid;
  dim3 block;
  std::size_t shared_bytes;         // dynamic
  std::size_t shared_limit;         // static plus dynamic
  void (*call)(const void*);        // runs the kernel for the current thread
  const void* arguments = nullptr;  // of `call`
};

// The reason why the shape cannot be launched on the simulated device; empty if it can.
std::string check_shape(const Grid& grid);

struct Failure {
  std::string text;  // empty: success
  cudaError_t error = cudaErrorLaunchFailure;
  const void* code = nullptr;  // code address, if known
};
// `static_bytes`: raised to the size of the static shared arrays.
Failure run_grid(const Grid& grid, std::size_t& static_bytes);

}  // namespace dp::simt
