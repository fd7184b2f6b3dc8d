// Whether somebody asked the run to stop; in a world, whether anybody did, with the same answer on every rank.
#pragma once

#include <atomic>
#include <memory>

#include "dp/world.h"

namespace dp {

class StopRequest {
 public:
  // `flag` may be null.
  StopRequest(const std::atomic<int>* flag, std::shared_ptr<World> world) : flag_(flag), world_(std::move(world)) {}

  // In a world every rank asks the same number of times; a wish is heard one question later.
  bool asked() {
    const bool here = flag_ != nullptr && flag_->load() != 0;
    if (!asked_) asked_ = world_ ? world_->agree(here) : here;
    return asked_;
  }

 private:
  const std::atomic<int>* flag_;
  std::shared_ptr<World> world_;
  bool asked_ = false;
};

}  // namespace dp
