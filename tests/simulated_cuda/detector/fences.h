// The order between blocks that __threadfence and an atomic counter establish: the last block to count reads what the
// others wrote.
#pragma once

#include <array>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "simulated_cuda/detector/shadow.h"

namespace dp::simt {

struct Published {
  std::uint32_t block, epoch;
  std::uint16_t thread;
};

// Fences and observed counters of a block that has started and not ended.
class BlockFences {
 public:
  void fence(unsigned thread) { fenced_[thread] = true; }
  bool has_fenced(unsigned thread) const { return fenced_[thread]; }
  void see(const Published& by, const Accessed& access);
  // Whether `later`, an access of this block, is ordered after `earlier`, an access of another block.
  bool ordered(const Accessed& earlier, const Accessed& later) const;

 private:
  struct Known {
    Published by;
    std::uint32_t epoch;  // this block's epoch when it observed `by`
    std::uint16_t thread;
  };
  std::array<bool, 1024> fenced_{};
  std::unordered_map<std::uint32_t, std::vector<Known>> known_;  // by block, each entry later than the one before
};

class Fences {
 public:
  void new_operation() { published_.clear(); }
  void atomic(BlockFences& block, const void* place, const Accessed& access);

 private:
  std::unordered_map<const void*, std::vector<Published>> published_;
};

}  // namespace dp::simt
