#include "simulated_cuda/detector/fences.h"

#include <algorithm>

namespace dp::simt {

void Fences::atomic(BlockFences& block, const void* place, const Accessed& access) {
  std::vector<Published>& published = published_[place];
  for (const Published& by : published)
    if (by.block != access.block) block.see(by, access);
  if (block.has_fenced(access.thread)) published.push_back({access.block, access.epoch, access.thread});
}

void BlockFences::see(const Published& by, const Accessed& access) {
  std::vector<Known>& known = known_[by.block];
  const bool old = std::any_of(known.begin(), known.end(), [&](const Known& before) {
    return before.by.epoch == by.epoch && before.by.thread == by.thread;
  });
  if (!old) known.push_back({by, access.epoch, access.thread});
}

bool BlockFences::ordered(const Accessed& earlier, const Accessed& later) const {
  const auto at = known_.find(earlier.block);
  if (at == known_.end()) return false;
  return std::any_of(at->second.begin(), at->second.end(), [&](const Known& known) {
    const bool published = earlier.epoch < known.by.epoch || earlier.thread == known.by.thread;
    const bool heard = later.epoch > known.epoch || later.thread == known.thread;
    return published && heard;
  });
}

}  // namespace dp::simt
