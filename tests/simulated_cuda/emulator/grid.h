// One launch of a kernel, run to its end on the calling thread: a few of its blocks at once, in turns.
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
  std::size_t shared_limit;         // static and dynamic together
  void (*call)(const void*);        // runs the kernel for the current thread
  const void* arguments = nullptr;  // of call
};

// Why the shape cannot be launched on the simulated device; empty if it can.
std::string check_shape(const Grid& grid);

struct Failure {
  std::string text;  // empty: it went well
  cudaError_t error = cudaErrorLaunchFailure;
  const void* code = nullptr;  // where in the program, if known
};
// `static_bytes`: what its static shared arrays take at least.
Failure run_grid(const Grid& grid, std::size_t& static_bytes);

}  // namespace dp::simt
