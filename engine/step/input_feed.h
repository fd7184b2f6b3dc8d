// Uploads minibatches to a device that cannot read host memory. A copy stream fills one of two staging slots while the
// previous step computes. The compute stream then copies the slot into the input buffer that every step reads.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>

#include "kernels/device/backend.h"

namespace dp::engine {

// Used only by the replica's thread.
class InputFeed {
 public:
  static constexpr std::size_t kParts = 3;  // images, labels, samples
  struct Part {
    const void* from = nullptr;  // host memory, valid until the compute stream has reached this upload; null: no copy
    std::size_t bytes = 0;       // size of the destination, also without a copy
  };
  using Parts = std::array<Part, kParts>;

  InputFeed(kernels::Context& context, kernels::Stream& compute);

  static std::size_t bytes_for(const Parts& parts);
  // Allocates memory for minibatches of `bytes` bytes, a sum of bytes_for(). Waits for all work before it reallocates.
  void reserve(std::size_t bytes);
  // Of the input buffer on the device; null before reserve().
  std::byte* begin_of_inputs() { return inputs_ ? static_cast<std::byte*>(inputs_->data()) : nullptr; }
  std::size_t held_bytes() const { return inputs_ ? (slots_.size() + 1) * inputs_->bytes() : 0; }  // device bytes
  // Starts a minibatch in the other slot.
  void begin();
  // Enqueues the upload of the next shard of the minibatch. Shards are stored one after another. Returns the device
  // addresses of its parts, valid for work that is enqueued later on the compute stream.
  std::array<std::byte*, kParts> upload(const Parts& parts);
  // Label of the copies, see Stream::label().
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
  std::unique_ptr<kernels::Stream> copies_;  // last owning member: destroyed first, after its work is done
  std::size_t current_ = 0, used_ = 0;
};

}  // namespace dp::engine
