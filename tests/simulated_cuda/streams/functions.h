// What the runtime keeps of each kernel, as of a function of a loaded module: it outlives reset().
#pragma once

#include <array>
#include <cstddef>
#include <string>

#include "simulated_cuda/simulation.h"

namespace dp::simt {

struct FunctionLimits {
  // What cudaFuncSetAttribute has allowed on each device, dynamic bytes; -1: nothing.
  std::array<int, kMaxDevices> allowed = {-1, -1, -1, -1, -1, -1, -1, -1};
  std::size_t static_bytes = 0;  // of shared memory; the most that a block has been seen to declare
  int most_threads = 0;          // of its __launch_bounds__; 0: it has none, or the compiler leaves no trace of them

  std::size_t dynamic_limit(int device) const;  // bytes that a launch may ask for
  std::size_t shared_limit(int device) const;   // static and dynamic together
};
FunctionLimits limits_of(const void* function);
void allow_dynamic(const void* function, int device, int bytes);
void note_static(const void* function, std::size_t bytes);

}  // namespace dp::simt
