#include "engine/step/logits_store.h"

#include <algorithm>

namespace dp::engine {

LogitsStore::LogitsStore(Replica& replica, std::int64_t rows, std::size_t row_bytes, std::size_t target_bytes)
    : replica_(replica), row_bytes_(row_bytes), target_bytes_(target_bytes) {
  samples_.reserve(static_cast<std::size_t>(rows));
  targets_.reserve(static_cast<std::size_t>(rows) * target_bytes_);
  logits_ =
      replica.device.allocate(std::max<std::size_t>(static_cast<std::size_t>(rows) * row_bytes, 1), &MemoryUse::other);
}

void LogitsStore::append(int item, const Plan& plan, const ShardInput& input) {
  const std::size_t begin = samples_.size() * row_bytes_, bytes = static_cast<std::size_t>(input.rows) * row_bytes_;
  if (input.labels == nullptr || begin + bytes > logits_->bytes()) return;
  replica_.compute().copy(static_cast<std::byte*>(logits_->data()) + begin,
                          replica_.runner.address(item, plan.logits()), bytes);
  samples_.insert(samples_.end(), input.samples, input.samples + input.rows);
  const auto* const targets = static_cast<const std::byte*>(input.labels);
  targets_.insert(targets_.end(), targets, targets + static_cast<std::size_t>(input.rows) * target_bytes_);
}

void LogitsStore::download(void* logits) {
  replica_.compute().download(logits, logits_->data(), samples_.size() * row_bytes_);
}

}  // namespace dp::engine
