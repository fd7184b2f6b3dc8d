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

  // Counts the bytes in memory_use() as `kind` until forget(). Error(device) if there is no room.
  std::unique_ptr<kernels::Buffer> allocate(std::size_t bytes, std::size_t MemoryUse::*kind) {
    const bool travels = kind == &MemoryUse::weights || kind == &MemoryUse::gradients ||
                         kind == &MemoryUse::optimizer || kind == &MemoryUse::statistics;
    auto buffer = travels ? context_->allocate_for_peers(bytes) : context_->allocate(bytes);
    hold(bytes, kind);
    return buffer;
  }
  void forget(std::size_t bytes, std::size_t MemoryUse::*kind) { held_.*kind -= bytes; }
  // Counts bytes that another object has allocated on this device. `moves`: a captured graph may hold an address that
  // this allocation has replaced.
  void hold(std::size_t bytes, std::size_t MemoryUse::*kind, bool moves = true) {
    held_.*kind += bytes;
    allocations_ += moves;
  }
  // Replaces a buffer that is null or smaller than `bytes`. Waits for the compute stream first.
  void at_least(std::unique_ptr<kernels::Buffer>& buffer, std::size_t bytes, std::size_t MemoryUse::*kind) {
    if (buffer != nullptr && buffer->bytes() >= bytes) return;
    compute_->synchronize();
    if (buffer != nullptr) forget(buffer->bytes(), kind);
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
