#include "engine/optimizer/gradient_norm.h"

#include "kernels/comm/communicator.h"

namespace dp::engine {

using namespace kernels;

// Slices of a bucket begin at block boundaries.
static_assert(kSliceBlock % kNormBlock == 0);

std::int64_t norm_blocks(Range range) { return (range.size() + kNormBlock - 1) / kNormBlock; }

std::int64_t norm_blocks(const std::vector<Bucket>& buckets) {
  std::int64_t blocks = 0;
  for (const Bucket& bucket : buckets) blocks += norm_blocks(bucket.range);
  return blocks;
}

GradientNorm::GradientNorm(Replica& replica, const std::vector<Bucket>& buckets, const std::vector<Range>& own,
                           std::optional<LossScaling> scaling, std::int64_t before, std::int64_t behind)
    : replica_(replica), own_(own), first_block_{before} {
  Context& context = replica.context();
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    buckets_.push_back(buckets[i].range);
    first_block_.push_back(first_block_.back() + norm_blocks(buckets[i].range));
    ops_.push_back(own[i].size() != 0 ? context.make_op(GradNormPartials{own[i].size()}) : nullptr);
  }
  const std::int64_t all = first_block_.back() + behind;
  partials_ = replica.allocate(static_cast<std::size_t>(all) * sizeof(double), &MemoryUse::other);
  finish_ = context.make_op(GradNormFinish{all, scaling});
}

void GradientNorm::sum_own(std::size_t bucket, Stream& stream) {
  if (ops_[bucket] == nullptr) return;
  const std::size_t element = size_of(replica_.table().type());
  std::byte* const own = replica_.gradients() + static_cast<std::size_t>(own_[bucket].begin) * element;
  run_op<GradNormPartials>(*ops_[bucket], stream, {.x = own, .partials = own_partials(bucket)});
}

void GradientNorm::finish(Stream& stream) {
  run_op<GradNormFinish>(*finish_, stream,
                         {.partials = partials_->data(),
                          .inputs = replica_.inputs(),
                          .results = replica_.results(),
                          .scaler = replica_.scaler()});
}

}  // namespace dp::engine
