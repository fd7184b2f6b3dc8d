// What a stream is asked to do.
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
  void* staged = nullptr;      // the source as it was when the copy was asked for; the work frees it
  bool corrupt = false;        // a peer path that lies
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
  Stream* stream;  // until it has done so much
  std::uint64_t position;
  Event* event;
};

struct CallWork {
  cudaHostFn_t function;
  void* data;
};

using Work = std::variant<std::monostate, KernelWork, CopyWork, FillWork, RecordWork, WaitWork, CallWork, ForeignWork>;

Work launched(const Work& work);         // as it is enqueued this time
std::string describe(const Work& work);  // "kernel relu_kernel", "a copy of 64 bytes"

// Does it on the calling thread, for a stream of `device`. `operation`: the race detector's number for it.
void run(KernelWork& work, int device, std::uint32_t operation);
void run(CopyWork& work, int device, std::uint32_t operation, bool slowly);
void run(FillWork& work, int device, std::uint32_t operation);

}  // namespace dp::simt
