// The logits of evaluated batches, stored on the replica's device until the evaluation ends.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/step/replica.h"

namespace dp::engine {

class LogitsStore {
 public:
  // Allocates room for `rows` rows of `row_bytes` bytes on the replica's device; called on its worker. `target_bytes`:
  // of one row. Error(device). The replica must outlive this object.
  LogitsStore(Replica& replica, std::int64_t rows, std::size_t row_bytes, std::size_t target_bytes);
  ~LogitsStore() { replica_.device.subtract_bytes(logits_->bytes(), &MemoryUse::other); }
  LogitsStore(const LogitsStore&) = delete;
  LogitsStore& operator=(const LogitsStore&) = delete;

  // Enqueues a copy of the item's logits, after its forward pass. Rows beyond the room are left out.
  void append(int item, const Plan& plan, const ShardInput& input);

  // Of the rows stored since the last clear(), in their order.
  const std::vector<std::int64_t>& samples() const { return samples_; }  // indices in the data set
  const std::vector<std::byte>& targets() const { return targets_; }     // class numbers or targets
  void download(void* logits);                                           // waits for the copies
  void clear() { samples_.clear(), targets_.clear(); }

 private:
  Replica& replica_;
  const std::size_t row_bytes_, target_bytes_;
  std::vector<std::int64_t> samples_;
  std::vector<std::byte> targets_;
  std::unique_ptr<kernels::Buffer> logits_;
};

}  // namespace dp::engine
