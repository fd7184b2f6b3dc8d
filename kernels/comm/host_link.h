// A link between two threads of one process, through host memory.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

#include "kernels/backend.h"

namespace dp::kernels {

class HostLink final : public Link {
 public:
  explicit HostLink(Context& sender) : sender_(sender) {}

  void reserve(std::size_t bytes) override;
  std::size_t held(End end) const override {
    return end == End::sender && slots_.front().memory ? kSlots * slots_.front().memory->bytes() : 0;
  }
  void send(const void* data, std::size_t bytes, Stream& stream) override;
  void receive(void* data, std::size_t bytes, Stream& stream) override;

 private:
  struct Slot {
    std::unique_ptr<Buffer> memory;
    std::size_t bytes = 0;  // of the tensor in it
  };
  Slot& slot(std::uint64_t number) { return slots_[number % kSlots]; }
  bool put(const void* data, std::size_t bytes);  // false: the queue is full
  bool take(void* data, std::size_t bytes);       // false: the queue is empty

  Context& sender_;
  std::array<Slot, kSlots> slots_;
  std::atomic<std::uint64_t> sent_{0}, received_{0};  // tensors so far; each is written by its own end only
};

}  // namespace dp::kernels
