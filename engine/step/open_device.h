// A device that is in use: its context, its compute stream, and the bytes that were allocated on it.
#pragma once

#include <cstdint>
#include <memory>

#include "dp/memory.h"
#include "kernels/device/backend.h"

namespace dp::engine {

// The size in bytes of a part of device memory, rounded up so that the next part begins at a multiple of 64 bytes.
constexpr std::size_t aligned(std::size_t bytes) {
  constexpr std::size_t kAlign = 64;
  return (bytes + kAlign - 1) / kAlign * kAlign;
}

class OpenDevice {
 public:
  explicit OpenDevice(std::unique_ptr<kernels::Context> context)
      : context_(std::move(context)), compute_(context_->make_stream()) {}

  kernels::Context& context() const { return *context_; }
  kernels::Stream& compute() const { return *compute_; }

  // Counts the bytes in memory_use() as `kind` until subtract_bytes(). Error(device) if there is no room.
  std::unique_ptr<kernels::Buffer> allocate(std::size_t bytes, std::size_t MemoryUse::*kind) {
    const bool read_by_peers = kind == &MemoryUse::weights || kind == &MemoryUse::gradients ||
                               kind == &MemoryUse::optimizer || kind == &MemoryUse::statistics;
    auto buffer = read_by_peers ? context_->allocate_for_peers(bytes) : context_->allocate(bytes);
    add_bytes(bytes, kind);
    return buffer;
  }
  void subtract_bytes(std::size_t bytes, std::size_t MemoryUse::*kind) { held_.*kind -= bytes; }
  // Counts bytes that another object has allocated on this device. `replaces_memory`: a captured graph may hold the
  // address of memory that this allocation replaces.
  void add_bytes(std::size_t bytes, std::size_t MemoryUse::*kind, bool replaces_memory = true) {
    held_.*kind += bytes;
    allocations_ += replaces_memory;
  }
  // Allocates the buffer if it is null or smaller than `bytes`. Waits for the compute stream first.
  void ensure_size(std::unique_ptr<kernels::Buffer>& buffer, std::size_t bytes, std::size_t MemoryUse::*kind) {
    if (buffer != nullptr && buffer->bytes() >= bytes) return;
    compute_->synchronize();
    if (buffer != nullptr) subtract_bytes(buffer->bytes(), kind);
    buffer = allocate(bytes, kind);
  }

  const MemoryUse& memory_use() const { return held_; }
  std::uint64_t allocations() const { return allocations_; }  // count so far; addresses may change when it does

 private:
  const std::unique_ptr<kernels::Context> context_;
  const std::unique_ptr<kernels::Stream> compute_;
  MemoryUse held_;
  std::uint64_t allocations_ = 0;
};

}  // namespace dp::engine
