// The kinds of work that a stream executes.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>

#include "simulated_cuda/api/kernel_call.h"
#include "simulated_cuda/foreign_work.h"

namespace dp::simt {

class Stream;
struct Event;

struct KernelWork {
  Grid grid;
  const void* function;
  std::array<KernelPointer, kMaxPointers> pointers;
  std::size_t pointer_count;
  alignas(16) std::array<std::byte, kArgumentBytes> arguments;
};

struct CopyWork {
  void* to;
  const void* from;
  std::size_t bytes;
  int to_device, from_device;  // -1: the host
  void* staged = nullptr;      // snapshot of the source at the time of the call; owned by the work
  bool corrupt = false;        // over a corrupting peer path
};

struct FillWork {
  void* to;
  int value;
  std::size_t bytes;
};

struct RecordWork {
  Event* event;
};

struct WaitWork {
  Stream* stream;  // waits until this stream has reached `position`
  std::uint64_t position;
  Event* event;
};

struct CallWork {
  cudaHostFn_t function;
  void* data;
};

using Work = std::variant<std::monostate, KernelWork, CopyWork, FillWork, RecordWork, WaitWork, CallWork, ForeignWork>;

Work launched(const Work& work);         // the copy for one execution
std::string describe(const Work& work);  // "kernel relu_kernel", "a copy of 64 bytes"

// Executes the work on the calling thread, for a stream of `device`. `operation`: the race detector's number.
void run(KernelWork& work, int device, std::uint32_t operation);
void run(CopyWork& work, int device, std::uint32_t operation, bool slowly);
void run(FillWork& work, int device, std::uint32_t operation);

}  // namespace dp::simt
