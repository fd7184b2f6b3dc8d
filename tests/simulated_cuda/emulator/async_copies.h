// The cp.async copies from global to shared memory that one thread has issued and not yet waited for.
#pragma once

#include <cstddef>
#include <vector>

namespace dp::simt {

struct AsyncCopyOrder {
  void* to;
  const void* from;  // unused if `zeros` is set
  unsigned bytes;
  bool zeros;
  bool late;  // copies at the wait, not at the issue
};

class AsyncCopies {
 public:
  void clear();
  void issue(const AsyncCopyOrder& order, unsigned thread);
  // For the race detector: copies without a wait may still write.
  void announce_unfinished(unsigned thread) const;
  void commit() { groups_.push_back(orders_.size()); }
  // Completes all groups except the last `pending` ones.
  void wait(std::size_t pending, unsigned thread);
  // fence.proxy.async: without it wgmma may not see completed copies.
  void fence() { fenced_ = true; }
  bool fenced() const { return fenced_; }

 private:
  std::vector<AsyncCopyOrder> orders_;
  std::vector<std::size_t> groups_;  // number of orders at each commit
  bool fenced_ = true;
};

}  // namespace dp::simt
