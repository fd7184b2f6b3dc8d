// A kernel launch before it is enqueued.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>

#include "simulated_cuda/emulator/grid.h"

namespace dp::simt {

inline constexpr std::size_t kArgumentBytes = 1024;
inline constexpr std::size_t kMaxPointers = 40;

struct KernelPointer {
  const void* address;
  std::size_t bytes;  // size of the first element, at most 8
  bool written;
};

struct KernelCall {
  Grid grid;
  cudaStream_t stream;
  const void* function;
  const void* arguments;
  std::size_t argument_bytes;
  std::array<KernelPointer, kMaxPointers> pointers = {};
  std::size_t pointer_count = 0;

  void add_pointer(const KernelPointer& pointer) {
    if (pointer_count < kMaxPointers) pointers[pointer_count++] = pointer;
  }
};

// Copies the arguments.
cudaError_t enqueue(const KernelCall& call);

bool is_device_address(const void* address);  // whether it is in the address range of a simulated device

}  // namespace dp::simt
