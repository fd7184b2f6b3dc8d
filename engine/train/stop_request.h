// Whether a stop was requested. With several ranks: on any rank, with the same result on every rank.
#pragma once

#include <atomic>
#include <memory>

#include "dp/process_group.h"

namespace dp {

class StopRequest {
 public:
  // `flag` may be null.
  StopRequest(const std::atomic<int>* flag, std::shared_ptr<ProcessGroup> group)
      : flag_(flag), group_(std::move(group)) {}

  // With several ranks, every rank makes the same calls, and a request takes effect one call later.
  bool asked() {
    if (!asked_) asked_ = group_ ? group_->agree(here()) : here();
    return asked_;
  }
  // The same without the delay. Waits for all ranks.
  bool asked_now() {
    if (!group_) return asked();
    if (asked_) return true;
    for (const std::string& wish : group_->exchange(here() ? "1" : "0")) asked_ = asked_ || wish == "1";
    return asked_;
  }
  // Whether this process received a request.
  bool here() const { return flag_ != nullptr && flag_->load() != 0; }

 private:
  const std::atomic<int>* flag_;
  std::shared_ptr<ProcessGroup> group_;
  bool asked_ = false;
};

}  // namespace dp
