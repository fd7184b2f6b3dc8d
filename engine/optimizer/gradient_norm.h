// The L2 norm of the reduced gradient, for clipping, for skipping a step, and for the loss scale. Each replica sums the
// squares of its own parts; the partial sums of all blocks, in order, give the norm.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "engine/replica/replica.h"

namespace dp::engine {

std::int64_t norm_blocks(kernels::Range range);                // partial sums (doubles) of a range
std::int64_t norm_blocks(const std::vector<Bucket>& buckets);  // of all buckets
inline std::size_t norm_bytes(const std::vector<Bucket>& buckets) {
  return static_cast<std::size_t>(norm_blocks(buckets)) * sizeof(double);
}

class GradientNorm {
 public:
  // `own`: this replica's part of each bucket; it begins at a block of the bucket. With a pipeline, the buckets are
  // those of one stage. The blocks of all stages are in bucket order: `before` ones of later stages precede these, and
  // `behind` ones of earlier stages follow.
  GradientNorm(Replica& replica, const std::vector<Bucket>& buckets, const std::vector<kernels::Range>& own,
               std::optional<kernels::LossScaling> scaling, std::int64_t before = 0, std::int64_t behind = 0);

  double* partials(std::size_t bucket) { return partials(bucket, buckets_[bucket].begin); }
  double* own_partials(std::size_t bucket) { return partials(bucket, own_[bucket].begin); }
  std::int64_t blocks() const { return first_block_.back() - first_block_.front(); }  // of all buckets
  double* all_partials() { return static_cast<double*>(partials_->data()); }          // of all stages
  std::int64_t all_blocks() const { return static_cast<std::int64_t>(partials_->bytes() / sizeof(double)); }

  // Enqueue.
  void sum_own(std::size_t bucket, kernels::Stream& stream);
  void finish(kernels::Stream& stream);  // requires the partial sums of all blocks

 private:
  double* partials(std::size_t bucket, std::int64_t element) {
    return static_cast<double*>(partials_->data()) + first_block_[bucket] +
           (element - buckets_[bucket].begin) / kernels::kNormBlock;
  }

  Replica& replica_;
  std::vector<kernels::Range> buckets_, own_;
  std::vector<std::int64_t> first_block_;          // one more than buckets
  std::vector<std::unique_ptr<kernels::Op>> ops_;  // one per bucket; null if this replica updates nothing of it
  std::unique_ptr<kernels::Op> finish_;
  std::unique_ptr<kernels::Buffer> partials_;
};

}  // namespace dp::engine
