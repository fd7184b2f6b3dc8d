// Per-kernel state of the runtime, as for a function of a loaded module. It survives reset().
#pragma once

#include <array>
#include <cstddef>
#include <string>

#include "simulated_cuda/simulation.h"

namespace dp::simt {

struct FunctionLimits {
  // Dynamic bytes that cudaFuncSetAttribute has allowed on each device; -1: not set.
  std::array<int, kMaxDevices> allowed = {-1, -1, -1, -1, -1, -1, -1, -1};
  std::size_t static_bytes = 0;  // of shared memory: the maximum that a block has declared
  int most_threads = 0;          // from __launch_bounds__; 0: no bounds, or the compiler leaves no trace of them

  std::size_t dynamic_limit(int device) const;  // bytes that a launch may request
  std::size_t shared_limit(int device) const;   // static plus dynamic
};
FunctionLimits limits_of(const void* function);
void allow_dynamic(const void* function, int device, int bytes);
void note_static(const void* function, std::size_t bytes);

}  // namespace dp::simt
