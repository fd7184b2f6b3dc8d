#include "engine/step/input_feed.h"

#include <algorithm>

#include "engine/step/open_device.h"

namespace dp::engine {
InputFeed::InputFeed(kernels::Context& context, kernels::Stream& compute)
    : context_(context), compute_(compute), copies_(context.make_stream()) {
  for (Slot& slot : slots_) slot.arrived = context.make_event(), slot.free = context.make_event();
}

std::size_t InputFeed::bytes_for(const Parts& parts) {
  std::size_t bytes = 0;
  for (const Part& part : parts) bytes += aligned(part.bytes);
  return bytes;
}

void InputFeed::reserve(std::size_t bytes) {
  if (inputs_ != nullptr && inputs_->bytes() >= bytes) return;
  copies_->synchronize();
  compute_.synchronize();
  for (Slot& slot : slots_) slot.memory.reset();
  inputs_.reset();
  inputs_ = context_.allocate(bytes);
  for (Slot& slot : slots_) slot.memory = context_.allocate(bytes);
}

void InputFeed::begin() {
  current_ ^= 1;
  used_ = 0;
  copies_->wait(*slots_[current_].free);
}

std::array<std::byte*, InputFeed::kParts> InputFeed::upload(const Parts& parts) {
  Slot& slot = slots_[current_];
  std::byte* const from = static_cast<std::byte*>(slot.memory->data());
  std::byte* const to = static_cast<std::byte*>(inputs_->data());
  std::array<std::byte*, kParts> places{};
  std::size_t begin = inputs_->bytes(), end = used_;  // byte range of the copied parts
  for (std::size_t i = 0; i < kParts; ++i) {
    places[i] = to + used_;
    if (parts[i].from != nullptr && parts[i].bytes > 0) {
      copies_->copy(from + used_, parts[i].from, parts[i].bytes);
      begin = std::min(begin, used_);
      end = used_ + parts[i].bytes;
    }
    used_ += aligned(parts[i].bytes);
  }
  if (begin >= end) return places;
  copies_->record(*slot.arrived);
  compute_.wait(*slot.arrived);
  compute_.copy(to + begin, from + begin, end - begin);
  compute_.record(*slot.free);
  return places;
}

}  // namespace dp::engine
