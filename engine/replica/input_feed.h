// How a minibatch comes to a device that cannot read the host's memory: on a stream of its own, into one of two slots, while the step
// before computes; then, in the compute stream's order, to the place where every step finds its input.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>

#include "kernels/backend.h"

namespace dp::engine {

// Used by the replica's thread alone.
class InputFeed {
 public:
  static constexpr std::size_t kParts = 3;  // images, labels, samples
  struct Part {
    const void* from = nullptr;  // host memory, valid until the compute stream has passed; null: nothing is brought
    std::size_t bytes = 0;       // of the place, also where nothing is brought
  };
  using Parts = std::array<Part, kParts>;

  InputFeed(kernels::Context& context, kernels::Stream& compute);

  static std::size_t room_for(const Parts& parts);
  // Makes room for minibatches of so many bytes, by room_for(), after waiting for all work.
  void reserve(std::size_t bytes);
  // Where the first minibatch's parts will lie; null before reserve().
  std::byte* place() { return inputs_ ? static_cast<std::byte*>(inputs_->data()) : nullptr; }
  std::size_t held() const { return inputs_ ? (slots_.size() + 1) * inputs_->bytes() : 0; }  // bytes of the device
  // A new minibatch: the slots change.
  void begin();
  // Enqueues the next piece of it; pieces lie one after another. Returns where its parts will be when the compute stream comes here.
  std::array<std::byte*, kParts> upload(const Parts& parts);
  // What the copies count as.
  void label(std::size_t label) { copies_->label(label); }

 private:
  struct Slot {
    std::unique_ptr<kernels::Buffer> memory;
    std::unique_ptr<kernels::Event> arrived, free;
  };

  kernels::Context& context_;
  kernels::Stream& compute_;
  std::array<Slot, 2> slots_;
  std::unique_ptr<kernels::Buffer> inputs_;
  std::unique_ptr<kernels::Stream> copies_;  // goes first, when its work is done
  std::size_t turn_ = 0, used_ = 0;
};

}  // namespace dp::engine
