// What one block knows of others through __threadfence and an atomic counter: the last block to count reads what all have written.
#pragma once

#include <array>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "simt/detector/shadow.h"

namespace dp::simt {

class Fences {
 public:
  void new_operation() { published_.clear(); }
  void new_block() {
    fenced_.fill(false);
    known_.clear();
  }
  void fence(unsigned thread) { fenced_[thread] = true; }
  void atomic(const void* place, const Accessed& access);
  // Whether `later`, of the running block, comes after `earlier`, of another one.
  bool ordered(const Accessed& earlier, const Accessed& later) const;

 private:
  struct Published {
    std::uint32_t block, epoch;
    std::uint16_t thread;
  };
  struct Known {
    Published by;
    std::uint32_t epoch;  // since when, in this block
    std::uint16_t thread;
  };
  std::array<bool, 1024> fenced_{};
  std::unordered_map<const void*, std::vector<Published>> published_;
  std::unordered_map<std::uint32_t, Known> known_;  // by block
};

}  // namespace dp::simt
