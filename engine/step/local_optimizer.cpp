#include "engine/step/local_optimizer.h"

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
                           std::optional<LossScaling> scaling, std::int64_t blocks_before, std::int64_t blocks_after)
    : replica_(replica), own_(own), first_block_{blocks_before} {
  Context& context = replica.context();
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    buckets_.push_back(buckets[i].range);
    first_block_.push_back(first_block_.back() + norm_blocks(buckets[i].range));
    ops_.push_back(own[i].size() != 0 ? context.make_op(GradNormPartials{own[i].size()}) : nullptr);
  }
  const std::int64_t all = first_block_.back() + blocks_after;
  partials_ = replica.device.allocate(static_cast<std::size_t>(all) * sizeof(double), &MemoryUse::other);
  finish_ = context.make_op(GradNormFinish{all, scaling});
}

void GradientNorm::sum_own_squares(std::size_t bucket, Stream& stream) {
  if (ops_[bucket] == nullptr) return;
  run_op<GradNormPartials>(*ops_[bucket], stream,
                           {.x = replica_.arenas.gradient(own_[bucket].begin), .partials = own_partials(bucket)});
}

void GradientNorm::finish(Stream& stream) {
  run_op<GradNormFinish>(*finish_, stream,
                         {.partials = partials_->data(),
                          .inputs = replica_.arenas.step_inputs(),
                          .results = replica_.arenas.step_results(),
                          .scaler = replica_.arenas.scaler()});
}

LocalOptimizer::LocalOptimizer(Replica& replica, const std::vector<Range>& parts, const ParameterGroups& groups)
    : replica_(replica), element_bytes_(size_of(replica.arenas.table().type())) {
  std::int64_t held = 0;
  for (const Range& range : parts) {
    parts_.push_back({range, held});
    held += range.size();
    frozen_.emplace_back();
    for (const Range& one : groups.frozen_in(range))
      frozen_.back().push_back(
          {one.begin, replica.context().make_op(Fill{static_cast<std::size_t>(one.size()) * element_bytes_})});
  }
  if (const std::vector<std::uint8_t>& map = groups.map(); !map.empty()) {
    groups_ = replica.device.allocate(map.size(), &MemoryUse::other);
    replica.compute().copy(groups_->data(), map.data(), map.size());
    replica.compute().synchronize();
  }
  set_kind({});
}

std::byte* LocalOptimizer::state(std::size_t slot, const Part& part) {
  if (state_ == nullptr) return nullptr;
  const Part& last = parts_.back();
  const std::int64_t element = static_cast<std::int64_t>(slot) * (last.offset + last.range.size()) + part.offset;
  return static_cast<std::byte*>(state_->data()) + static_cast<std::size_t>(element) * element_bytes_;
}

std::size_t LocalOptimizer::bytes_for(const UpdateKind& kind) const {
  if (state_ != nullptr && kind.keeps(held_)) return held_bytes();
  const Part& last = parts_.back();
  return state_bytes(kind, last.offset + last.range.size(), element_bytes_);
}

void LocalOptimizer::ensure_state(const UpdateKind& kind) {
  const std::size_t bytes = bytes_for(kind);
  if (state_ != nullptr && !kind.keeps(held_)) {
    replica_.device.subtract_bytes(held_bytes(), &MemoryUse::optimizer);
    state_.reset();
  }
  set_kind(kind);
  if (state_ != nullptr) return;
  held_ = kind;
  if (bytes != 0) state_ = replica_.device.allocate(bytes, &MemoryUse::optimizer);
}

void LocalOptimizer::set_kind(const UpdateKind& kind) {
  if (kind == kind_ && !ops_.empty()) return;
  kind_ = kind;
  ops_.clear();
  Context& context = replica_.context();
  const Part& last = parts_.back();
  for (const Part& part : parts_) {
    OptimizerUpdate update{part.range.size(), kind_};
    update.stride = last.offset + last.range.size();
    if (replica_.arenas.mixed()) update.copy = context.activation_type();
    ops_.push_back(part.range.size() != 0 ? context.make_op(update) : nullptr);
  }
}

void LocalOptimizer::zero_frozen_gradients(std::size_t part, Stream& stream) {
  for (const Frozen& frozen : frozen_[part])
    run_op<Fill>(*frozen.clear, stream, {.dst = replica_.arenas.gradient(frozen.begin)});
}

void LocalOptimizer::update(std::size_t index, Stream& stream) {
  const Part& part = parts_[index];
  if (part.range.size() == 0) return;
  const auto begin = static_cast<std::size_t>(part.range.begin);
  run_op<OptimizerUpdate>(
      *ops_[index], stream,
      {.weights = replica_.arenas.value(part.range.begin),
       .gradients = replica_.arenas.gradient(part.range.begin),
       .state = kind_.slots != 0 ? state(0, part) : nullptr,
       .groups = groups_ ? static_cast<std::byte*>(groups_->data()) + begin / kGroupElements : nullptr,
       .inputs = replica_.arenas.step_inputs(),
       .results = replica_.arenas.step_results(),
       .copy = replica_.arenas.mixed() ? replica_.arenas.low_value(part.range.begin) : nullptr});
}

}  // namespace dp::engine
