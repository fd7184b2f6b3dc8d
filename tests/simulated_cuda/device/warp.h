// Warp primitives.
#pragma once

#include "simulated_cuda/emulator/block.h"

namespace dp::simt {

template <class T>
struct Shuffle {
  T value, result;
  int selector, width;
};

struct LaneUp {
  static int source(int lane, int, int selector, int base) { return lane - selector < base ? lane : lane - selector; }
};
struct LaneDown {
  static int source(int lane, int width, int selector, int base) {
    return lane + selector >= base + width ? lane : lane + selector;
  }
};
struct LaneXor {
  static int source(int lane, int width, int selector, int base) {
    return (lane ^ selector) >= base + width ? lane : lane ^ selector;
  }
};
struct LaneIndex {
  static int source(int, int width, int selector, int base) { return base + (selector & (width - 1)); }
};

template <class Rule, class T>
DP_SIMT_UNSEEN void combine_shuffles(void* const* arguments, unsigned mask, Block& block, Site site) {
  for (int lane = 0; lane < static_cast<int>(kWarp); ++lane) {
    if ((mask >> lane & 1) == 0) continue;
    auto& own = *static_cast<Shuffle<T>*>(arguments[lane]);
    const int source = Rule::source(lane, own.width, own.selector, lane & ~(own.width - 1));
    if (source < 0 || (mask >> source & 1) == 0)
      block.fail("the shuffle at %s:%d reads lane %d, which is not in the mask", site.name(), site.line, source);
    own.result = static_cast<Shuffle<T>*>(arguments[source])->value;
  }
}

template <class Rule, class T>
DP_SIMT_UNSEEN T shuffle(unsigned mask, T value, int selector, int width, Site site) {
  Shuffle<T> arguments{value, value, selector, width};
  running_block->collective(mask, &arguments, &combine_shuffles<Rule, T>, site);
  return arguments.result;
}

struct Vote {
  bool value;
  unsigned ballot;
};
DP_SIMT_UNSEEN inline void combine_votes(void* const* arguments, unsigned mask, Block&, Site) {
  unsigned ballot = 0;
  for (unsigned lane = 0; lane < kWarp; ++lane)
    if ((mask >> lane & 1) != 0 && static_cast<Vote*>(arguments[lane])->value) ballot |= 1u << lane;
  for (unsigned lane = 0; lane < kWarp; ++lane)
    if ((mask >> lane & 1) != 0) static_cast<Vote*>(arguments[lane])->ballot = ballot;
}
DP_SIMT_UNSEEN inline unsigned vote(unsigned mask, bool value, Site site) {
  Vote arguments{value, 0};
  running_block->collective(mask, &arguments, &combine_votes, site);
  return arguments.ballot;
}

inline void combine_fences(void* const*, unsigned mask, Block& block, Site) { block.warp_fence(mask); }

}  // namespace dp::simt

inline constexpr unsigned kFullWarpMask = 0xffffffffu;

inline void __syncwarp(unsigned mask = kFullWarpMask, DP_SIMT_CALLER) {
  dp::simt::running_block->collective(mask, nullptr, &dp::simt::combine_fences, DP_SIMT_SITE);
}
template <class T>
T __shfl_sync(unsigned mask, T value, int lane, int width = 32, DP_SIMT_CALLER) {
  return dp::simt::shuffle<dp::simt::LaneIndex>(mask, value, lane, width, DP_SIMT_SITE);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, DP_SIMT_CALLER) {
  return dp::simt::shuffle<dp::simt::LaneDown>(mask, value, static_cast<int>(delta), width, DP_SIMT_SITE);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, DP_SIMT_CALLER) {
  return dp::simt::shuffle<dp::simt::LaneUp>(mask, value, static_cast<int>(delta), width, DP_SIMT_SITE);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32, DP_SIMT_CALLER) {
  return dp::simt::shuffle<dp::simt::LaneXor>(mask, value, lanes, width, DP_SIMT_SITE);
}
inline unsigned __ballot_sync(unsigned mask, int predicate, DP_SIMT_CALLER) {
  return dp::simt::vote(mask, predicate != 0, DP_SIMT_SITE);
}
inline int __any_sync(unsigned mask, int predicate, DP_SIMT_CALLER) {
  return dp::simt::vote(mask, predicate != 0, DP_SIMT_SITE) != 0;
}
inline int __all_sync(unsigned mask, int predicate, DP_SIMT_CALLER) {
  return dp::simt::vote(mask, predicate == 0, DP_SIMT_SITE) == 0;
}
