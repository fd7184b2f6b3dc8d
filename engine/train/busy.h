#pragma once

#include "dp/process_group.h"

namespace dp {

// Marks file access, which may take longer than the ranks' timeout.
class Busy {
 public:
  explicit Busy(ProcessGroup* group) : group_(group) {
    if (group_ != nullptr) group_->busy(true);
  }
  ~Busy() {
    if (group_ != nullptr) group_->busy(false);
  }
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;

 private:
  ProcessGroup* group_;
};

}  // namespace dp
