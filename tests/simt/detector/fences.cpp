#include "simt/detector/fences.h"

namespace dp::simt {

void Fences::atomic(const void* place, const Accessed& access) {
  std::vector<Published>& published = published_[place];
  for (const Published& by : published)
    if (by.block != access.block) known_.try_emplace(by.block, Known{by, access.epoch, access.thread});
  if (fenced_[access.thread]) published.push_back({access.block, access.epoch, access.thread});
}

bool Fences::ordered(const Accessed& earlier, const Accessed& later) const {
  const auto at = known_.find(earlier.block);
  if (at == known_.end()) return false;
  const Known& known = at->second;
  const bool published = earlier.epoch < known.by.epoch || earlier.thread == known.by.thread;
  const bool heard = later.epoch > known.epoch || later.thread == known.thread;
  return published && heard;
}

}  // namespace dp::simt
