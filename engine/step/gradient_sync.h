// Processes a bucket of gradients after backward has finished it: reduces it over the replicas, lets the optimizer
// update this replica's part, and sends the new weights to every replica. There is one GradientSync per replica. Its
// work runs on a communication stream.
//
// With sharded updates and mixed precision, the new weights are all-gathered in the type that layers read. This halves
// the bytes. A replica then has only its own part of the full-precision values, until all_gather_values().
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "dp/parallel_options.h"
#include "engine/observe/failpoint.h"
#include "engine/step/local_optimizer.h"
#include "engine/step/replica.h"

namespace dp::engine {

// The elements of a bucket that `rank` updates. That rank also stores their optimizer state.
kernels::Range updated_by(const Bucket& bucket, Reduce mode, int rank, int ranks);
// The buckets that `rank` helps to update: all or none.
std::vector<Bucket> updated_buckets(const std::vector<Bucket>& buckets, Reduce mode, int rank);

// What a stage of a pipeline needs for the norm of the whole gradient, to which all stages of a replica contribute.
struct GradientNormOfStages {
  // Between the stages of one replica. The last stage has rank 0. Null without a pipeline, or if no norm is computed.
  std::unique_ptr<kernels::Communicator> communicator;
  std::vector<std::int64_t> blocks;  // number of partial sums of each stage, by rank
};

// Gradient reduction in bfloat16 (docs/decisions/0026). A bucket is rounded into a separate buffer and reduced there.
// The part of the result that this replica needs is converted back into the gradient arena.
class RoundedGradients {
 public:
  // Allocates memory for the largest bucket of every shard. Buckets reuse it in stream order.
  RoundedGradients(Replica& replica, const std::vector<Bucket>& buckets);
  static std::size_t bytes(const std::vector<Bucket>& buckets, std::size_t shards);

  // Call in bucket order. `own`: the part of `range` whose reduced gradient this replica needs.
  void add_bucket(kernels::Range range, kernels::Range own);

  void* data() { return buffer_->data(); }                  // of the first shard
  std::int64_t stride() const { return stride_; }           // elements between shards
  void round(std::size_t bucket, kernels::Stream& stream);  // of all shards
  void widen(std::size_t bucket, kernels::Stream& stream);  // the reduced gradient, stored in the first shard's buffer

 private:
  struct Ops {
    kernels::Range range, own;                  // elements of the arenas
    std::unique_ptr<kernels::Op> round, widen;  // widen: null if `own` is empty
  };

  Replica& replica_;
  const std::int64_t stride_;
  std::unique_ptr<kernels::Buffer> buffer_;
  std::vector<Ops> buckets_;
};

class GradientSync {
 public:
  // `communicator` is null for a single replica with one shard; all work then runs on the compute stream.
  // `reduce_dtype`: bf16; any other type means the gradients' own type. `scaling`: set if the loss, and hence the
  // gradients, are scaled. `needs_all_values`: every replica needs all full-precision values after each step.
  GradientSync(Replica& replica, std::unique_ptr<kernels::Communicator> communicator, Reduce mode,
               std::vector<Bucket> buckets, const ParameterGroups& groups, const Failpoints& failpoints,
               DType reduce_dtype, std::optional<kernels::LossScaling> scaling = {}, bool needs_all_values = true,
               GradientNormOfStages stages = {});
  ~GradientSync();
  // Ends the work on the communication stream. Call it on all replicas before any of them is destroyed, because
  // replicas read each other's memory. Afterwards this object may only be destroyed.
  void stop();

  const std::vector<Bucket>& buckets() const { return buckets_; }
  kernels::Communicator* communicator() { return communicator_.get(); }  // may be null
  LocalOptimizer& optimizer() { return optimizer_; }

  // Records the communication stream's work in `tracer` from now on. The tracer must outlive this object.
  void trace(Tracer& tracer);

  // Begins a step. `per_bucket`: each bucket is updated as soon as it is reduced; otherwise update() updates them all.
  void begin(std::int64_t step, bool per_bucket);
  // Call it when the gradients of `bucket` are complete on this replica and backward no longer reads its weights. Once
  // per bucket and step, in bucket order.
  void bucket_ready(std::size_t bucket);
  // Calls bucket_ready() for all remaining buckets with first_entry >= `entry`.
  void entries_ready(int entry);
  // Only for a step without per_bucket, as are all steps of optimizers with tensor work. `norm`: computes the gradient
  // norm, for clipping and for skipping the step; required with a scaled loss.
  void update(bool norm);
  // As in Communicator, for the communicators of this object.
  void take_turns(kernels::CaptureTurn* turn);
  // Makes the compute stream wait until the last update is done and its weights have arrived.
  void wait_for_weights();
  // Restarts the step after a failed graph capture. The work since begin() was only captured and will not run.
  void reset();
  // Copies the master's weights to every replica, for example after a load, and renews the copy that layers read.
  void broadcast_weights();
  void broadcast_state();  // of the optimizer; only if every replica stores all of it (all_reduce)
  // Gives every replica all full-precision values, if each has only its own part of them.
  void all_gather_values();
  void wait_until_idle();  // blocks this thread until the communication stream's work is done

 private:
  kernels::Stream& stream() { return communicator_ ? *comm_stream_ : replica_.compute(); }
  // Mixed precision: converts a range of the values to the type that layers read.
  struct Cast {
    std::int64_t begin = 0;  // element
    std::unique_ptr<kernels::Op> op;
  };
  Cast cast_of(kernels::Range range);
  void run(const Cast& cast);
  void enter(Phase phase, std::size_t bucket);
  void reduce_bucket(std::size_t bucket);
  void update_bucket(std::size_t bucket);
  void compute_norm();
  void work_on_tensors();
  template <typename Before>
  void share_partials_of_bucket(std::size_t bucket, double* own, double* whole, const Before& before);
  void share_partials_of_stages();
  // Whether this replica receives the bucket's weights in the type that layers read, not in full precision.
  bool arrives_in_activation_type(const Bucket& bucket) const;
  void all_gather_weights(const Bucket& bucket);

  Replica& replica_;
  std::unique_ptr<kernels::Communicator> communicator_;
  const Reduce mode_;
  const std::vector<Bucket> buckets_;
  const Failpoints& failpoints_;
  const std::size_t element_bytes_;
  const DType type_;
  const std::optional<kernels::LossScaling> scaling_;
  const bool needs_all_values_;
  std::optional<RoundedGradients> rounded_;  // set if the reduction uses bf16
  std::unique_ptr<kernels::Stream> comm_stream_;
  std::unique_ptr<kernels::Event> gradients_done_;
  std::unique_ptr<kernels::Event> weights_arrived_;  // recorded after the last bucket
  bool must_wait_for_weights_ = false;               // the compute stream must wait for weights_arrived_
  bool values_incomplete_ = false;                   // this replica has only its own part of the full-precision values
  const std::vector<kernels::Range> own_ranges_;     // this replica's part of each bucket
  LocalOptimizer optimizer_;
  GradientNormOfStages norm_of_stages_;
  GradientNorm norm_;
  std::vector<std::vector<Cast>> casts_;  // per bucket: ranges that other replicas update
  Cast cast_all_;
  std::vector<std::size_t> partial_bytes_;  // scratch memory: each rank's partial sums of one bucket's norm
  std::size_t next_bucket_ = 0;             // next bucket to become ready
  std::int64_t step_ = 0;
  bool per_bucket_ = true;
};

}  // namespace dp::engine
