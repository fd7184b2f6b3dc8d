// The copies from global to shared memory that one thread has issued and not yet waited for.
#pragma once

#include <cstddef>
#include <vector>

namespace dp::simt {

struct AsyncCopyOrder {
  void* to;
  const void* from;  // unused where zeros are stored
  unsigned bytes;
  bool zeros;
  bool late;  // done where it is waited for
};

class AsyncCopies {
 public:
  void clear();
  void issue(const AsyncCopyOrder& order, unsigned thread);
  // For the race detector: what has been issued and not waited for may be written still.
  void announce_unfinished(unsigned thread) const;
  void commit() { groups_.push_back(orders_.size()); }
  // Completes all groups but the last `pending`.
  void wait(std::size_t pending, unsigned thread);

 private:
  std::vector<AsyncCopyOrder> orders_;
  std::vector<std::size_t> groups_;  // how many orders there were at each commit
};

}  // namespace dp::simt
