// What happens to a bucket of gradients once backward has finished it: summed over the replicas, the
// weights updated, the new weights brought to every replica. One per replica; its work runs on a communication stream.
//
// With sharded updates and mixed precision the weights of others arrive in the type in which layers read them, half the bytes: a replica
// has only its own part of the values, until gather_values().
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "dp/optimizer.h"
#include "dp/parallel_options.h"
#include "engine/replica/replica.h"
#include "engine/replica/rounded_gradients.h"

namespace dp::engine {

// The elements of a bucket that a rank updates, and holds the momenta of.
kernels::Range updated_by(const Bucket& bucket, Reduce mode, int rank, int ranks);
// Doubles that the gradient's norm is summed up from.
std::int64_t norm_blocks(const std::vector<Bucket>& buckets);

class GradientSync {
 public:
  // `communicator` is null for a single replica with one lane: then everything runs on the compute stream. `scaling`: of the loss, whose
  // gradients arrive scaled. `reduce_dtype`: bf16, or as the gradients are. `keeps_values`: after each step every replica has all of them.
  GradientSync(Replica& replica, std::unique_ptr<kernels::Communicator> communicator, Reduce mode,
               std::vector<Bucket> buckets, const Failpoints& failpoints, DType reduce_dtype,
               std::optional<kernels::LossScaling> scaling = {}, bool keeps_values = true);
  ~GradientSync();
  // Ends what is on its way. For all replicas before the first goes, since they read each other's memory; nothing but destruction may
  // follow.
  void stop();

  const std::vector<Bucket>& buckets() const { return buckets_; }
  kernels::Communicator* communicator() { return communicator_.get(); }  // may be null

  // From now on tells its stream's work there. The tracer outlives it.
  void trace(Tracer& tracer);

  // How the coming step updates. `per_bucket`: as soon as a bucket is summed; otherwise by update() once all are. `momentum`: only after
  // ensure_momenta().
  void begin(std::int64_t step, bool per_bucket, bool momentum);
  // The gradients of `bucket` are complete on this replica and its weights no longer read. In order, each once a step.
  void bucket_ready(std::size_t bucket);
  // All buckets that became ready with the entries from `entry` on.
  void entries_ready(int entry);
  // For a step that is not per_bucket. `norm`: compute the gradient's norm, and clip and skip by it; always with a scaled loss.
  void update(bool norm);
  // Holds the compute stream back until the last update is done and its weights have arrived.
  void wait_for_weights();
  // The step begins again: what was enqueued since begin() was recorded and will not be done.
  void reset();
  // Brings the master's weights to every replica, as after a load, and renews what layers read of them.
  void broadcast_weights();
  void broadcast_momenta();  // where every replica holds all of them
  void gather_values();      // that only their owners have since the last step
  void synchronize();

  // This replica's part of the optimizer state: empty, whole buckets, or slices of buckets, in bucket order.
  struct Part {
    kernels::Range range;       // elements of the arenas
    std::int64_t momentum = 0;  // element offset of the range in the momentum buffer
  };
  const std::vector<Part>& parts() const { return parts_; }
  std::byte* momenta() { return momenta_ ? static_cast<std::byte*>(momenta_->data()) : nullptr; }
  std::size_t missing_momenta() const;  // bytes that ensure_momenta() would allocate
  void ensure_momenta();                // on all replicas before the first of them begins a step

 private:
  kernels::Stream& stream() { return communicator_ ? *comm_ : replica_.compute(); }
  std::byte* gradient(std::int64_t element) {
    return replica_.gradients() + static_cast<std::size_t>(element) * element_;
  }
  std::byte* value(std::int64_t element) { return replica_.values() + static_cast<std::size_t>(element) * element_; }
  kernels::Range part_of(std::size_t bucket) const { return parts_[bucket].range; }
  // Mixed precision: what brings a range of the values into the type in which layers read them.
  struct Cast {
    std::int64_t begin = 0;  // element
    std::unique_ptr<kernels::Op> op;
  };
  Cast cast_of(kernels::Range range);
  void run(const Cast& cast);
  void enter(Phase phase, std::size_t bucket);
  void sum(std::size_t bucket);
  void update_bucket(std::size_t bucket);
  void compute_norm();
  void share_partials(std::size_t bucket);
  bool arrives_low(const Bucket& bucket) const;
  void gather(const Bucket& bucket);

  Replica& replica_;
  std::unique_ptr<kernels::Communicator> communicator_;
  const Reduce mode_;
  const std::vector<Bucket> buckets_;
  const Failpoints& failpoints_;
  const std::size_t element_;  // bytes
  const DType type_;
  const std::optional<kernels::LossScaling> scaling_;
  const bool keeps_values_;
  std::optional<RoundedGradients> rounded_;  // in which they are summed
  std::unique_ptr<kernels::Stream> comm_;
  std::unique_ptr<kernels::Event> gradients_done_;
  std::unique_ptr<kernels::Event> weights_arrived_;  // those of the last bucket
  bool arriving_ = false, values_apart_ = false;
  std::vector<Part> parts_;                             // one per bucket
  std::vector<std::unique_ptr<kernels::Op>> sgd_;       // one per bucket; null where this replica updates nothing
  std::vector<std::unique_ptr<kernels::Op>> partials_;  // the same
  std::vector<std::vector<Cast>> casts_;                // of each bucket, what others have updated
  Cast cast_all_;
  std::unique_ptr<kernels::Op> finish_norm_;
  std::vector<std::int64_t> partial_offset_;  // blocks, one more than buckets
  std::vector<std::size_t> partial_bytes_;    // scratch: the ranks' shares of one bucket
  std::unique_ptr<kernels::Buffer> norm_partials_, momenta_;
  std::size_t next_ = 0;  // the bucket that becomes ready next
  std::int64_t step_ = 0;
  bool per_bucket_ = true, momentum_ = false;
};

}  // namespace dp::engine
