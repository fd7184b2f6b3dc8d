#include "simulated_cuda/emulator/async_copies.h"

#include <cstring>

#include "simulated_cuda/emulator/detector.h"

namespace dp::simt {
namespace {

void store(const AsyncCopyOrder& order) {
  if (order.zeros) {
    std::memset(order.to, 0, order.bytes);
  } else {
    std::memcpy(order.to, order.from, order.bytes);
  }
}

// The hardware may copy at any time between the issue and the wait, so each copy is announced at both.
void announce(const AsyncCopyOrder& order, unsigned thread) {
  if (detector == nullptr) return;
  if (!order.zeros) detector->access(order.from, order.bytes, Access::read, thread, nullptr);
  detector->access(order.to, order.bytes, Access::write, thread, nullptr);
}

}  // namespace

void AsyncCopies::clear() {
  orders_.clear();
  groups_.clear();
  fenced_ = true;
}

void AsyncCopies::issue(const AsyncCopyOrder& order, unsigned thread) {
  announce(order, thread);
  if (!order.late) store(order);
  orders_.push_back(order);
}

void AsyncCopies::announce_unfinished(unsigned thread) const {
  for (const AsyncCopyOrder& order : orders_) announce(order, thread);
}

void AsyncCopies::wait(std::size_t pending, unsigned thread) {
  if (groups_.size() <= pending) return;
  const std::size_t done = groups_[groups_.size() - 1 - pending];
  if (done > 0) fenced_ = false;
  for (std::size_t i = 0; i < done; ++i) {
    announce(orders_[i], thread);
    if (orders_[i].late) store(orders_[i]);
  }
  orders_.erase(orders_.begin(), orders_.begin() + done);
  groups_.erase(groups_.begin(), groups_.end() - pending);
  for (std::size_t& group : groups_) group -= done;
}

}  // namespace dp::simt
