#include "engine/parallel/gradient_sync.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace dp::engine {

using namespace kernels;

namespace {

// Slices of a bucket begin at block boundaries of the gradient norm.
static_assert(kSliceBlock % kNormBlock == 0);
std::int64_t blocks_of(std::int64_t count) { return (count + kNormBlock - 1) / kNormBlock; }

}  // namespace

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

std::int64_t norm_blocks(const std::vector<Bucket>& buckets) {
  std::int64_t blocks = 0;
  for (const Bucket& bucket : buckets) blocks += blocks_of(bucket.range.size());
  return blocks;
}

GradientSync::GradientSync(Replica& replica, std::unique_ptr<Communicator> communicator, Reduce mode,
                           std::vector<Bucket> buckets, const Failpoints& failpoints, DType reduce_dtype,
                           std::optional<LossScaling> scaling, bool keeps_values)
    : replica_(replica),
      communicator_(std::move(communicator)),
      mode_(mode),
      buckets_(std::move(buckets)),
      failpoints_(failpoints),
      element_(size_of(replica.table().type())),
      type_(replica.table().type()),
      scaling_(scaling),
      keeps_values_(keeps_values),
      partial_offset_{0} {
  Context& context = replica.context();
  if (communicator_) {
    comm_ = context.make_stream(StreamUse::communication);
    comm_->label(replica.label_of(Phase::broadcast));
    if (reduce_dtype == DType::bf16) rounded_.emplace(replica, buckets_);
    communicator_->set_summands(replica.local_shards(), rounded_ ? rounded_->stride() : replica.table().size());
    std::int64_t largest = 0;
    for (const Bucket& bucket : buckets_) largest = std::max(largest, bucket.range.size());
    communicator_->reserve(static_cast<std::size_t>(largest) * element_);
  }
  gradients_done_ = context.make_event();
  weights_arrived_ = context.make_event();
  const int ranks = communicator_ ? communicator_->size() : 1;
  const bool mixed = replica.mixed();
  std::int64_t held = 0;
  for (const Bucket& bucket : buckets_) {
    const Range own = updated_by(bucket, mode_, replica.rank(), ranks);
    parts_.push_back({own, held});
    held += own.size();
    if (rounded_) rounded_->add_bucket(bucket.range, own);
    SgdUpdate sgd{own.size()};
    if (mixed) sgd.copy = context.activation_type();
    sgd_.push_back(own.size() ? context.make_op(sgd) : nullptr);
    partials_.push_back(own.size() ? context.make_op(GradNormPartials{own.size()}) : nullptr);
    partial_offset_.push_back(partial_offset_.back() + blocks_of(bucket.range.size()));
    casts_.emplace_back();
    for (const Range& others : {Range{bucket.range.begin, own.begin}, Range{own.end, bucket.range.end}})
      if (mixed && others.size() != 0 && !arrives_low(bucket)) casts_.back().push_back(cast_of(others));
  }
  if (mixed) cast_all_ = cast_of({0, replica.table().size()});
  partial_bytes_.resize(static_cast<std::size_t>(ranks));
  norm_partials_ =
      replica.allocate(static_cast<std::size_t>(partial_offset_.back()) * sizeof(double), &MemoryUse::other);
  finish_norm_ = context.make_op(GradNormFinish{partial_offset_.back(), scaling_});
}

GradientSync::Cast GradientSync::cast_of(Range range) {
  Context& context = replica_.context();
  const Shape flat{range.size()};
  const DType low = context.activation_type();
  return {range.begin, context.make_op(Reorder{{flat, type_, context.plain_layout(flat, type_)},
                                               {flat, low, context.plain_layout(flat, low)}})};
}

void GradientSync::run(const Cast& cast) {
  void* const args[] = {value(cast.begin), replica_.low_value(cast.begin)};
  cast.op->run(stream(), args, nullptr);
}

GradientSync::~GradientSync() {
  stop();
  communicator_.reset();
}

void GradientSync::stop() { comm_.reset(); }

void GradientSync::trace(Tracer& tracer) {
  if (!communicator_) return;
  comm_->trace(&tracer.communication);
  communicator_->trace(&tracer.communication);
}

void GradientSync::begin(std::int64_t step, bool per_bucket, bool momentum) {
  step_ = step;
  per_bucket_ = per_bucket;
  momentum_ = momentum;
  next_ = 0;
  values_apart_ = arrives_low(buckets_.front());
}

std::size_t GradientSync::missing_momenta() const {
  const Part& last = parts_.back();
  return momenta_ == nullptr ? static_cast<std::size_t>(last.momentum + last.range.size()) * element_ : 0;
}

void GradientSync::ensure_momenta() {
  if (const std::size_t bytes = missing_momenta()) momenta_ = replica_.allocate(bytes, &MemoryUse::momenta);
}

void GradientSync::entries_ready(int entry) {
  while (next_ < buckets_.size() && buckets_[next_].first_entry >= entry) bucket_ready(next_);
}

void GradientSync::bucket_ready(std::size_t bucket) {
  ++next_;
  const Phase interrupted = replica_.phase();
  sum(bucket);
  if (per_bucket_) update_bucket(bucket);
  replica_.visit(interrupted);
}

void GradientSync::enter(Phase phase, std::size_t bucket) {
  replica_.visit(phase);
  replica_.progress().reach_bucket(bucket);
  stream().label(replica_.label_of(phase));
  stream().detail(bucket_detail(bucket));
  if (!failpoints_.hit(phase, replica_.rank(), step_)) return;
  const double nan64 = std::numeric_limits<double>::quiet_NaN();
  const float nan32 = std::numeric_limits<float>::quiet_NaN();
  stream().upload(gradient(buckets_[bucket].range.begin),
                  type_ == DType::f64 ? static_cast<const void*>(&nan64) : &nan32, element_);
}

void GradientSync::sum(std::size_t bucket) {
  if (communicator_) {
    replica_.compute().record(*gradients_done_);
    comm_->wait(*gradients_done_);
  }
  enter(Phase::reduce, bucket);
  if (!communicator_) return;
  const Range range = buckets_[bucket].range;
  const std::int64_t count = range.size();
  const DType type = rounded_ ? DType::bf16 : type_;
  if (rounded_) rounded_->round(bucket, *comm_);
  void* const data = rounded_ ? rounded_->data() : gradient(range.begin);
  switch (mode_) {
    case Reduce::all_reduce: communicator_->all_reduce(data, count, type, *comm_); break;
    case Reduce::sharded: communicator_->reduce_scatter(data, count, type, *comm_); break;
    default: communicator_->reduce(data, count, type, 0, *comm_);
  }
  if (rounded_) rounded_->widen(bucket, *comm_);
}

void GradientSync::update_bucket(std::size_t bucket) {
  enter(Phase::update, bucket);
  const Part& part = parts_[bucket];
  if (part.range.size() != 0) {
    void* const args[] = {value(part.range.begin),
                          gradient(part.range.begin),
                          momentum_ ? momenta() + static_cast<std::size_t>(part.momentum) * element_ : nullptr,
                          replica_.inputs(),
                          replica_.results(),
                          replica_.mixed() ? replica_.low_value(part.range.begin) : nullptr};
    sgd_[bucket]->run(stream(), args, nullptr);
  }
  if (!communicator_) return;
  enter(Phase::broadcast, bucket);
  const Range range = buckets_[bucket].range;
  if (mode_ == Reduce::master) communicator_->broadcast(value(range.begin), range.size(), type_, 0, *comm_);
  if (mode_ == Reduce::sharded) gather(buckets_[bucket]);
  for (const Cast& cast : casts_[bucket]) run(cast);
  if (bucket + 1 < buckets_.size()) return;
  comm_->record(*weights_arrived_);
  arriving_ = true;
}

bool GradientSync::arrives_low(const Bucket& bucket) const {
  const std::int64_t vectors = replica_.table().vectors();  // layers read them in full precision
  return mode_ == Reduce::sharded && !keeps_values_ && vectors != 0 && bucket.range.begin >= vectors;
}

void GradientSync::gather(const Bucket& bucket) {
  const Range range = bucket.range;
  if (!arrives_low(bucket)) return communicator_->all_gather(value(range.begin), range.size(), type_, *comm_);
  const Context& context = replica_.context();
  // An all-gather does no arithmetic: any type of the same size works.
  const DType carrier = context.element_bytes(context.activation_type()) == 2 ? DType::bf16 : DType::f64;
  communicator_->all_gather(replica_.low_value(range.begin), range.size(), carrier, *comm_);
}

void GradientSync::update(bool norm) {
  if (communicator_) {  // the update reads inputs uploaded on the compute stream
    replica_.compute().record(*gradients_done_);
    comm_->wait(*gradients_done_);
  }
  if (norm) compute_norm();
  for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket) update_bucket(bucket);
}

void GradientSync::compute_norm() {
  auto* partials = static_cast<double*>(norm_partials_->data());
  for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    const Range own = part_of(bucket);
    if (own.size() != 0) {
      const std::int64_t first = (own.begin - buckets_[bucket].range.begin) / kNormBlock;
      void* const args[] = {gradient(own.begin), partials + partial_offset_[bucket] + first};
      partials_[bucket]->run(stream(), args, nullptr);
    }
    if (mode_ == Reduce::sharded && communicator_) share_partials(bucket);
  }
  if (mode_ == Reduce::master && scaling_ && communicator_)  // every replica adapts its own copy of the scale
    communicator_->broadcast(partials, partial_offset_.back(), DType::f64, 0, *comm_);
  else if (mode_ == Reduce::master && replica_.rank() != 0)
    return;
  void* const args[] = {partials, replica_.inputs(), replica_.results(), replica_.scaler()};
  finish_norm_->run(stream(), args, nullptr);
}

void GradientSync::share_partials(std::size_t bucket) {
  const Range range = buckets_[bucket].range;
  for (int rank = 0; rank < communicator_->size(); ++rank)
    partial_bytes_[static_cast<std::size_t>(rank)] =
        static_cast<std::size_t>(blocks_of(slice_of(range.size(), rank, communicator_->size()).size())) *
        sizeof(double);
  double* whole = static_cast<double*>(norm_partials_->data()) + partial_offset_[bucket];
  const double* own = whole + (part_of(bucket).begin - range.begin) / kNormBlock;
  communicator_->gather(own, whole, partial_bytes_, 0, *comm_);
  communicator_->broadcast(whole, blocks_of(range.size()), DType::f64, 0, *comm_);
}

void GradientSync::wait_for_weights() {
  if (std::exchange(arriving_, false)) replica_.compute().wait(*weights_arrived_);
}

void GradientSync::reset() {
  next_ = 0;
  arriving_ = false;
  if (communicator_) communicator_->reset();
}

void GradientSync::broadcast_weights() {
  if (communicator_) {
    replica_.compute().record(*gradients_done_);
    comm_->wait(*gradients_done_);
    comm_->label(replica_.label_of(Phase::broadcast));
    communicator_->broadcast(replica_.values(), replica_.table().size(), type_, 0, *comm_);
  }
  if (cast_all_.op) run(cast_all_);
  synchronize();
}

void GradientSync::gather_values() {
  if (!std::exchange(values_apart_, false)) return;
  for (const Bucket& bucket : buckets_)
    if (arrives_low(bucket)) communicator_->all_gather(value(bucket.range.begin), bucket.range.size(), type_, *comm_);
  synchronize();
}

void GradientSync::broadcast_momenta() {
  if (!communicator_) return;
  communicator_->broadcast(momenta(), replica_.table().size(), type_, 0, *comm_);
  synchronize();
}

void GradientSync::synchronize() {
  if (comm_) comm_->synchronize();
}

}  // namespace dp::engine
