// One launch of a kernel, run to its end on the calling thread.
#pragma once

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
  void (*call)(const void*);        // runs the kernel for the current thread
  const void* arguments = nullptr;  // of call
};

// Why the shape cannot be launched on the simulated device; empty if it can.
std::string check_shape(const Grid& grid);

struct Failure {
  std::string text;              // empty: it went well
  bool illegal_address = false;  // else something that CUDA calls a launch failure
  const void* code = nullptr;    // where in the program, if known
};
Failure run_grid(const Grid& grid);

}  // namespace dp::simt
