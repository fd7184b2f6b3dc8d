#include "engine/step/local_optimizer.h"

#include <utility>

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

LocalOptimizer::LocalOptimizer(Replica& replica, std::vector<Bucket> buckets, const std::vector<Range>& parts,
                               const ParameterGroups& groups)
    : replica_(replica),
      all_groups_(groups),
      element_bytes_(size_of(replica.arenas.table().type())),
      buckets_(std::move(buckets)) {
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

std::unique_ptr<TensorUpdate> LocalOptimizer::make_tensors(const UpdateKind& kind) const {
  if (tensor_work(kind) == TensorWork::none) return nullptr;
  std::vector<Range> ranges;
  for (const Part& part : parts_) ranges.push_back(part.range);
  return std::make_unique<TensorUpdate>(replica_.context(), replica_.arenas.table(), buckets_, ranges, all_groups_,
                                        kind);
}

std::size_t LocalOptimizer::state_bytes_for(const UpdateKind& kind) const {
  if (state_ != nullptr && kind.keeps(held_)) return state_->bytes();
  const Part& last = parts_.back();
  return state_bytes(kind, last.offset + last.range.size(), element_bytes_);
}

std::size_t LocalOptimizer::bytes_for(const UpdateKind& kind) const {
  if (tensors_ != nullptr && kind == tensors_->kind()) return state_bytes_for(kind) + tensors_->bytes();
  const auto tensors = make_tensors(kind);
  return state_bytes_for(kind) + (tensors ? tensors->bytes() : 0);
}

void LocalOptimizer::ensure_state(const UpdateKind& kind) {
  const std::size_t bytes = state_bytes_for(kind);
  if (tensors_ != nullptr && kind != tensors_->kind()) {
    replica_.device.subtract_bytes(tensors_->bytes(), &MemoryUse::optimizer);
    tensors_.reset();
  }
  if (state_ != nullptr && !kind.keeps(held_)) {
    replica_.device.subtract_bytes(state_->bytes(), &MemoryUse::optimizer);
    state_.reset();
  }
  if (tensors_ == nullptr && (tensors_ = make_tensors(kind)) != nullptr) tensors_->allocate(replica_.device);
  set_kind(kind);
  if (state_ != nullptr) return;
  held_ = kind;
  if (bytes != 0) state_ = replica_.device.allocate(bytes, &MemoryUse::optimizer);
}

void LocalOptimizer::set_kind(const UpdateKind& kind) {
  if (kind == kind_ && !ops_.empty()) return;
  kind_ = kind;
  ops_.clear();
  direction_ops_.clear();
  Context& context = replica_.context();
  const Part& last = parts_.back();
  const std::int64_t stride = last.offset + last.range.size();
  const DType low = context.activation_type();
  const auto with_copy = [&](auto op) {
    if (replica_.arenas.mixed()) op.copy = low;
    return context.make_op(op);
  };
  const bool by_tensor = tensor_work(kind) != TensorWork::none;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const std::int64_t count = parts_[i].range.size();
    if (count == 0) {
      ops_.emplace_back();
      direction_ops_.emplace_back();
    } else if (by_tensor) {
      ops_.push_back(with_copy(ApplyDirection{tensors_->segments_in(i), kind_}));
      direction_ops_.push_back(context.make_op(UpdateDirection{tensors_->segments_in(i), kind_, stride}));
    } else {
      ops_.push_back(with_copy(OptimizerUpdate{.count = count, .kind = kind_, .stride = stride}));
    }
  }
}

void LocalOptimizer::zero_frozen_gradients(std::size_t part, Stream& stream) {
  for (const Frozen& frozen : frozen_[part])
    run_op<Fill>(*frozen.clear, stream, {.dst = replica_.arenas.gradient(frozen.begin)});
}

void* LocalOptimizer::groups_of(const Part& part) const {
  return groups_ ? static_cast<std::byte*>(groups_->data()) + part.range.begin / kGroupElements : nullptr;
}

void LocalOptimizer::find_direction(std::size_t index, Stream& stream) {
  const Part& part = parts_[index];
  if (part.range.size() == 0) return;
  const std::int64_t begin = part.range.begin;
  run_op<UpdateDirection>(
      *direction_ops_[index], stream,
      {.weights = replica_.arenas.value(begin),
       .gradients = replica_.arenas.gradient(begin),
       .state = state(0, part),
       .groups = groups_of(part),
       .inputs = replica_.arenas.step_inputs(),
       .results = replica_.arenas.step_results(),
       .segments = tensors_->segments(index),
       .direction = tensors_->direction(begin),
       .partials = tensors_->work() == TensorWork::trust_ratio ? tensors_->partials(begin) : nullptr});
}

void LocalOptimizer::update(std::size_t index, Stream& stream) {
  const Part& part = parts_[index];
  if (part.range.size() == 0) return;
  const std::int64_t begin = part.range.begin;
  void* const copy = replica_.arenas.mixed() ? replica_.arenas.low_value(begin) : nullptr;
  if (tensors_ != nullptr)
    return run_op<ApplyDirection>(*ops_[index], stream,
                                  {.weights = replica_.arenas.value(begin),
                                   .direction = tensors_->direction(begin),
                                   .groups = groups_of(part),
                                   .inputs = replica_.arenas.step_inputs(),
                                   .results = replica_.arenas.step_results(),
                                   .segments = tensors_->segments(index),
                                   .ratios = tensors_->work() == TensorWork::trust_ratio ? tensors_->ratios() : nullptr,
                                   .copy = copy});
  run_op<OptimizerUpdate>(*ops_[index], stream,
                          {.weights = replica_.arenas.value(begin),
                           .gradients = replica_.arenas.gradient(begin),
                           .state = kind_.slots != 0 ? state(0, part) : nullptr,
                           .groups = groups_of(part),
                           .inputs = replica_.arenas.step_inputs(),
                           .results = replica_.arenas.step_results(),
                           .copy = copy});
}

}  // namespace dp::engine
