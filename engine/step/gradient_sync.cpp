#include "engine/step/gradient_sync.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "kernels/low_float.h"

namespace dp::engine {

using namespace kernels;

kernels::Range updated_by(const Bucket& bucket, Reduce mode, int rank, int ranks) {
  Range own = bucket.range;
  if (mode == Reduce::sharded) {
    own = slice_of(bucket.range.size(), rank, ranks);
    own = {own.begin + bucket.range.begin, own.end + bucket.range.begin};
  } else if (mode == Reduce::master && rank != 0) {
    own.end = own.begin;
  }
  return own;
}

std::vector<Bucket> updated_buckets(const std::vector<Bucket>& buckets, Reduce mode, int rank) {
  return mode == Reduce::master && rank != 0 ? std::vector<Bucket>() : buckets;
}

namespace {

std::vector<Range> parts_of(const Replica& replica, const std::vector<Bucket>& buckets, Reduce mode, int ranks) {
  std::vector<Range> parts;
  for (const Bucket& bucket : buckets) parts.push_back(updated_by(bucket, mode, replica.rank(), ranks));
  return parts;
}

std::int64_t blocks_of(const GradientNormOfStages& stages, int first, int last) {
  std::int64_t blocks = 0;
  for (int rank = first; rank < last; ++rank) blocks += stages.blocks[static_cast<std::size_t>(rank)];
  return blocks;
}

GradientNorm norm_of(Replica& replica, const std::vector<Bucket>& buckets, const std::vector<Range>& own,
                     const std::optional<LossScaling>& scaling, const GradientNormOfStages& stages) {
  if (!stages.communicator) return {replica, buckets, own, scaling};
  const int rank = stages.communicator->rank();
  return {replica,
          buckets,
          own,
          scaling,
          blocks_of(stages, 0, rank),
          blocks_of(stages, rank + 1, stages.communicator->size())};
}

constexpr std::int64_t kShardAlign = 32;  // elements; every shard starts at a multiple of 64 bytes

std::int64_t stride_of(const std::vector<Bucket>& buckets) {
  std::int64_t largest = 0;
  for (const Bucket& bucket : buckets) largest = std::max(largest, bucket.range.size());
  return (largest + kShardAlign - 1) / kShardAlign * kShardAlign;
}

}  // namespace

std::size_t RoundedGradients::bytes(const std::vector<Bucket>& buckets, std::size_t shards) {
  return static_cast<std::size_t>(stride_of(buckets)) * shards * sizeof(BFloat16);
}

RoundedGradients::RoundedGradients(Replica& replica, const std::vector<Bucket>& buckets)
    : replica_(replica),
      stride_(stride_of(buckets)),
      buffer_(replica.device.allocate(bytes(buckets, static_cast<std::size_t>(replica.local_shards())),
                                      &MemoryUse::gradients)) {}

void RoundedGradients::add_bucket(Range range, Range own) {
  Context& context = replica_.context();
  const auto flat = [&](std::int64_t count, DType type) {
    const Shape shape{count};
    return TensorDesc{shape, type, context.plain_layout(shape, type)};
  };
  const DType wide = replica_.arenas.table().type();
  Ops ops{range, own, context.make_op(Reorder{flat(range.size(), wide), flat(range.size(), DType::bf16)}), nullptr};
  if (own.size() != 0) ops.widen = context.make_op(Reorder{flat(own.size(), DType::bf16), flat(own.size(), wide)});
  buckets_.push_back(std::move(ops));
}

void RoundedGradients::round(std::size_t bucket, Stream& stream) {
  const Ops& ops = buckets_[bucket];
  const std::int64_t arena = replica_.arenas.table().size();
  for (int shard = 0; shard < replica_.local_shards(); ++shard)
    run_op<Reorder>(*ops.round, stream,
                    {.src = reinterpret_cast<float*>(replica_.arenas.gradients()) + shard * arena + ops.range.begin,
                     .dst = static_cast<BFloat16*>(data()) + shard * stride_});
}

void RoundedGradients::widen(std::size_t bucket, Stream& stream) {
  const Ops& ops = buckets_[bucket];
  if (!ops.widen) return;
  run_op<Reorder>(*ops.widen, stream,
                  {.src = static_cast<BFloat16*>(data()) + (ops.own.begin - ops.range.begin),
                   .dst = reinterpret_cast<float*>(replica_.arenas.gradients()) + ops.own.begin});
}

GradientSync::GradientSync(Replica& replica, std::unique_ptr<Communicator> communicator, Reduce mode,
                           std::vector<Bucket> buckets, const ParameterGroups& groups, const Failpoints& failpoints,
                           DType reduce_dtype, std::optional<LossScaling> scaling, bool needs_all_values,
                           GradientNormOfStages stages)
    : replica_(replica),
      communicator_(std::move(communicator)),
      mode_(mode),
      buckets_(std::move(buckets)),
      failpoints_(failpoints),
      element_bytes_(size_of(replica.arenas.table().type())),
      type_(replica.arenas.table().type()),
      scaling_(scaling),
      needs_all_values_(needs_all_values),
      own_ranges_(parts_of(replica, buckets_, mode, communicator_ ? communicator_->size() : 1)),
      optimizer_(replica, updated_buckets(buckets_, mode, replica.rank()), own_ranges_, groups),
      norm_of_stages_(std::move(stages)),
      norm_(norm_of(replica, buckets_, own_ranges_, scaling, norm_of_stages_)) {
  Context& context = replica.context();
  if (norm_of_stages_.communicator)
    norm_of_stages_.communicator->reserve(static_cast<std::size_t>(norm_.all_blocks()) * sizeof(double));
  if (communicator_) {
    comm_stream_ = context.make_stream(StreamUse::communication);
    comm_stream_->label(replica.clock.label_of(Phase::broadcast));
    if (reduce_dtype == DType::bf16) rounded_.emplace(replica, buckets_);
    communicator_->set_summands(replica.local_shards(), rounded_ ? rounded_->stride() : replica.arenas.table().size());
    std::int64_t largest = 0;
    for (const Bucket& bucket : buckets_) largest = std::max(largest, bucket.range.size());
    communicator_->reserve(static_cast<std::size_t>(largest) * element_bytes_);
  }
  gradients_done_ = context.make_event();
  weights_arrived_ = context.make_event();
  const bool mixed = replica.arenas.mixed();
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    const Bucket& bucket = buckets_[i];
    const Range own = own_ranges_[i];
    if (rounded_) rounded_->add_bucket(bucket.range, own);
    casts_.emplace_back();
    for (const Range& others : {Range{bucket.range.begin, own.begin}, Range{own.end, bucket.range.end}})
      if (mixed && others.size() != 0 && !arrives_in_activation_type(bucket)) casts_.back().push_back(cast_of(others));
  }
  if (mixed) cast_all_ = cast_of({0, replica.arenas.table().size()});
  for (const Communicator* const between : {communicator_.get(), norm_of_stages_.communicator.get()})
    if (between) partial_bytes_.resize(std::max(partial_bytes_.size(), static_cast<std::size_t>(between->size())));
}

GradientSync::Cast GradientSync::cast_of(Range range) {
  Context& context = replica_.context();
  const Shape flat{range.size()};
  const DType low = context.activation_type();
  return {range.begin, context.make_op(Reorder{{flat, type_, context.plain_layout(flat, type_)},
                                               {flat, low, context.plain_layout(flat, low)}})};
}

void GradientSync::run(const Cast& cast) {
  run_op<Reorder>(*cast.op, stream(),
                  {.src = replica_.arenas.value(cast.begin), .dst = replica_.arenas.low_value(cast.begin)});
}

GradientSync::~GradientSync() {
  stop();
  communicator_.reset();
  norm_of_stages_.communicator.reset();
}

void GradientSync::stop() { comm_stream_.reset(); }

void GradientSync::trace(Tracer& tracer) {
  if (!communicator_) return;
  comm_stream_->trace(&tracer.communication);
  communicator_->trace(&tracer.communication);
}

void GradientSync::begin(std::int64_t step, bool per_bucket) {
  step_ = step;
  per_bucket_ = per_bucket;
  next_bucket_ = 0;
  values_incomplete_ = arrives_in_activation_type(buckets_.front());
}

void GradientSync::entries_ready(int entry) {
  while (next_bucket_ < buckets_.size() && buckets_[next_bucket_].first_entry >= entry) bucket_ready(next_bucket_);
}

void GradientSync::bucket_ready(std::size_t bucket) {
  ++next_bucket_;
  const Phase interrupted = replica_.clock.phase();
  reduce_bucket(bucket);
  if (per_bucket_) update_bucket(bucket);
  replica_.clock.visit(interrupted);
}

void GradientSync::enter(Phase phase, std::size_t bucket) {
  replica_.clock.visit(phase);
  replica_.clock.progress().reach_bucket(bucket,
                                         buckets_[bucket].range.size() * static_cast<std::int64_t>(element_bytes_));
  stream().label(replica_.clock.label_of(phase));
  stream().detail(bucket_detail(bucket));
  const StepPlace place{phase, replica_.rank(), step_, replica_.stage(), replica_.clock.progress().item()};
  if (!failpoints_.hit(place)) return;
  const double nan64 = std::numeric_limits<double>::quiet_NaN();
  const float nan32 = std::numeric_limits<float>::quiet_NaN();
  stream().upload(replica_.arenas.gradient(buckets_[bucket].range.begin),
                  type_ == DType::f64 ? static_cast<const void*>(&nan64) : &nan32, element_bytes_);
}

void GradientSync::reduce_bucket(std::size_t bucket) {
  if (communicator_) {
    replica_.compute().record(*gradients_done_);
    comm_stream_->wait(*gradients_done_);
  }
  enter(Phase::reduce, bucket);
  if (!communicator_) return optimizer_.zero_frozen_gradients(bucket, stream());
  const Range range = buckets_[bucket].range;
  const std::int64_t count = range.size();
  const DType type = rounded_ ? DType::bf16 : type_;
  if (rounded_) rounded_->round(bucket, *comm_stream_);
  void* const data = rounded_ ? rounded_->data() : replica_.arenas.gradient(range.begin);
  switch (mode_) {
    case Reduce::all_reduce: communicator_->all_reduce(data, count, type, *comm_stream_); break;
    case Reduce::sharded: communicator_->reduce_scatter(data, count, type, *comm_stream_); break;
    case Reduce::automatic:  // resolved() has replaced it
    case Reduce::master: communicator_->reduce(data, count, type, 0, *comm_stream_);
  }
  if (rounded_) rounded_->widen(bucket, *comm_stream_);
  optimizer_.zero_frozen_gradients(bucket, *comm_stream_);
}

void GradientSync::update_bucket(std::size_t bucket) {
  replica_.arenas.wait_for_copy();
  enter(Phase::update, bucket);
  optimizer_.update(bucket, stream());
  if (!communicator_) return;
  enter(Phase::broadcast, bucket);
  const Range range = buckets_[bucket].range;
  if (mode_ == Reduce::master)
    communicator_->broadcast(replica_.arenas.value(range.begin), range.size(), type_, 0, *comm_stream_);
  if (mode_ == Reduce::sharded) all_gather_weights(buckets_[bucket]);
  for (const Cast& cast : casts_[bucket]) run(cast);
  if (bucket + 1 < buckets_.size()) return;
  comm_stream_->record(*weights_arrived_);
  must_wait_for_weights_ = true;
}

bool GradientSync::arrives_in_activation_type(const Bucket& bucket) const {
  const std::int64_t vectors = replica_.arenas.table().vectors();  // layers read them in full precision
  return mode_ == Reduce::sharded && !needs_all_values_ && vectors != 0 && bucket.range.begin >= vectors;
}

void GradientSync::all_gather_weights(const Bucket& bucket) {
  const Range range = bucket.range;
  if (!arrives_in_activation_type(bucket))
    return communicator_->all_gather(replica_.arenas.value(range.begin), range.size(), type_, *comm_stream_);
  const Context& context = replica_.context();
  // An all-gather does no arithmetic: any type of the same size works.
  const DType carrier = context.element_bytes(context.activation_type()) == 2 ? DType::bf16 : DType::f64;
  communicator_->all_gather(replica_.arenas.low_value(range.begin), range.size(), carrier, *comm_stream_);
}

void GradientSync::update(bool norm) {
  replica_.arenas.wait_for_copy();
  if (communicator_) {  // the update reads inputs uploaded on the compute stream
    replica_.compute().record(*gradients_done_);
    comm_stream_->wait(*gradients_done_);
  }
  if (norm) compute_norm();
  if (optimizer_.tensors() != nullptr) work_on_tensors();
  for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket) update_bucket(bucket);
}

void GradientSync::compute_norm() {
  for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    norm_.sum_own_squares(bucket, stream());
    if (mode_ != Reduce::sharded || !communicator_) continue;
    const std::int64_t begin = buckets_[bucket].range.begin;
    share_partials_of_bucket(bucket, norm_.own_partials(bucket), norm_.partials(bucket), [&](std::int64_t element) {
      return norm_blocks({begin, element});
    });
  }
  if (mode_ == Reduce::master && scaling_ && communicator_)  // every replica adapts its own copy of the scale
    communicator_->broadcast(norm_.partials(0), norm_.blocks(), DType::f64, 0, *comm_stream_);
  else if (mode_ == Reduce::master && replica_.rank() != 0)
    return;
  share_partials_of_stages();
  norm_.finish(stream());
}

void GradientSync::share_partials_of_stages() {
  if (!norm_of_stages_.communicator) return;
  const auto ranks = static_cast<std::size_t>(norm_of_stages_.communicator->size());
  for (std::size_t rank = 0; rank < ranks; ++rank)
    partial_bytes_[rank] = static_cast<std::size_t>(norm_of_stages_.blocks[rank]) * sizeof(double);
  const std::span<const std::size_t> bytes = std::span(partial_bytes_).first(ranks);
  norm_of_stages_.communicator->gather(norm_.partials(0), norm_.all_partials(), bytes, 0, stream());
  norm_of_stages_.communicator->broadcast(norm_.all_partials(), norm_.all_blocks(), DType::f64, 0, stream());
}

// Gives every rank all partial sums of a bucket. `own`, `whole`: this rank's first one, and the bucket's.
// before(element): how many of the bucket belong to elements before this one.
template <typename Before>
void GradientSync::share_partials_of_bucket(std::size_t bucket, double* own, double* whole, const Before& before) {
  const Range range = buckets_[bucket].range;
  for (int rank = 0; rank < communicator_->size(); ++rank) {
    const Range slice = slice_of(range.size(), rank, communicator_->size());
    partial_bytes_[static_cast<std::size_t>(rank)] =
        static_cast<std::size_t>(before(range.begin + slice.end) - before(range.begin + slice.begin)) * sizeof(double);
  }
  const auto ranks = static_cast<std::size_t>(communicator_->size());
  const std::span<const std::size_t> bytes = std::span(partial_bytes_).first(ranks);
  communicator_->gather(own, whole, bytes, 0, *comm_stream_);
  communicator_->broadcast(whole, before(range.end) - before(range.begin), DType::f64, 0, *comm_stream_);
}

// The directions of all parts, and what an optimizer computes with whole tensors of them (TensorUpdate).
void GradientSync::work_on_tensors() {
  TensorUpdate& tensors = *optimizer_.tensors();
  if (tensors.bytes() == 0) return;  // another replica updates everything
  for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    enter(Phase::update, bucket);
    optimizer_.find_direction(bucket, stream());
    if (mode_ != Reduce::sharded || !communicator_) continue;
    const Range range = buckets_[bucket].range;
    if (tensors.work() == TensorWork::orthogonal)
      communicator_->all_gather(tensors.direction(range.begin), range.size(), type_, *comm_stream_);
    else
      share_partials_of_bucket(bucket, tensors.partials(own_ranges_[bucket].begin), tensors.partials(range.begin),
                               [&](std::int64_t element) { return tensors.partials_before(element); });
  }
  // Processors with other instructions multiply matrices to other last bits: the first replica does it for all.
  const bool by_first = mode_ == Reduce::all_reduce && communicator_ && tensors.work() == TensorWork::orthogonal;
  if (!by_first || communicator_->rank() == 0) tensors.finish(stream());
  if (!by_first) return;
  for (const Bucket& bucket : buckets_)
    communicator_->broadcast(tensors.direction(bucket.range.begin), bucket.range.size(), type_, 0, *comm_stream_);
}

void GradientSync::wait_for_weights() {
  if (std::exchange(must_wait_for_weights_, false)) replica_.compute().wait(*weights_arrived_);
}

void GradientSync::take_turns(kernels::CaptureTurn* turn) {
  if (communicator_) communicator_->take_turns(turn);
  if (norm_of_stages_.communicator) norm_of_stages_.communicator->take_turns(turn);
}

void GradientSync::reset() {
  next_bucket_ = 0;
  must_wait_for_weights_ = false;
  if (communicator_) communicator_->reset();
  if (norm_of_stages_.communicator) norm_of_stages_.communicator->reset();
}

void GradientSync::broadcast_weights() {
  if (communicator_) {
    replica_.compute().record(*gradients_done_);
    comm_stream_->wait(*gradients_done_);
    comm_stream_->label(replica_.clock.label_of(Phase::broadcast));
    communicator_->broadcast(replica_.arenas.values(), replica_.arenas.table().size(), type_, 0, *comm_stream_);
  }
  if (cast_all_.op) run(cast_all_);
  wait_until_idle();
}

void GradientSync::all_gather_values() {
  if (!std::exchange(values_incomplete_, false)) return;
  for (const Bucket& bucket : buckets_)
    if (arrives_in_activation_type(bucket))
      communicator_->all_gather(replica_.arenas.value(bucket.range.begin), bucket.range.size(), type_, *comm_stream_);
  wait_until_idle();
}

void GradientSync::broadcast_state() {
  if (!communicator_) return;
  for (int slot = 0; slot < optimizer_.slot_count(); ++slot)
    communicator_->broadcast(optimizer_.state(static_cast<std::size_t>(slot), optimizer_.parts().front()),
                             replica_.arenas.table().size(), type_, 0, *comm_stream_);
  wait_until_idle();
}

void GradientSync::wait_until_idle() {
  if (comm_stream_) comm_stream_->synchronize();
}

}  // namespace dp::engine
