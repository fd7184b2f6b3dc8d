// The update on one replica: the norm of the reduced gradient, and the optimizer of its parts of the arenas.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "engine/optimizer/optimizer.h"
#include "engine/step/replica.h"
#include "engine/step/tensor_update.h"

namespace dp::engine {

// The L2 norm of the reduced gradient, for clipping, for skipping a step, and for the loss scale. Each replica sums the
// squares of its own parts; the partial sums of all blocks, in order, give the norm.

std::int64_t norm_blocks(kernels::Range range);                // partial sums (doubles) of a range
std::int64_t norm_blocks(const std::vector<Bucket>& buckets);  // of all buckets
inline std::size_t norm_bytes(const std::vector<Bucket>& buckets) {
  return static_cast<std::size_t>(norm_blocks(buckets)) * sizeof(double);
}

class GradientNorm {
 public:
  // `own`: this replica's part of each bucket; it begins at a block of the bucket. With a pipeline, the buckets are
  // those of one stage, and the memory has the blocks of all stages, from the last stage to the first: `blocks_before`
  // of later stages, then this stage's, then `blocks_after` of earlier stages.
  GradientNorm(Replica& replica, const std::vector<Bucket>& buckets, const std::vector<kernels::Range>& own,
               std::optional<kernels::LossScaling> scaling, std::int64_t blocks_before = 0,
               std::int64_t blocks_after = 0);

  double* partials(std::size_t bucket) { return partials(bucket, buckets_[bucket].begin); }
  double* own_partials(std::size_t bucket) { return partials(bucket, own_[bucket].begin); }
  std::int64_t blocks() const { return first_block_.back() - first_block_.front(); }  // of all buckets
  double* all_partials() { return static_cast<double*>(partials_->data()); }          // of all stages
  std::int64_t all_blocks() const { return static_cast<std::int64_t>(partials_->bytes() / sizeof(double)); }

  // These enqueue.
  void sum_own_squares(std::size_t bucket, kernels::Stream& stream);
  void finish(kernels::Stream& stream);  // the norm, from the partial sums of all blocks

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

// The optimizer on one replica: it updates this replica's parts of the arenas and holds their state. A part is what the
// replica updates of one bucket; it may be empty.
class LocalOptimizer {
 public:
  struct Part {
    kernels::Range range;     // elements of the arenas
    std::int64_t offset = 0;  // element offset of the range in each state tensor
  };

  // `buckets`: those that the replica helps to update; none, or one for each part. `parts`: begin at multiples of
  // kGroupElements. `groups` must outlive this object.
  LocalOptimizer(Replica& replica, std::vector<Bucket> buckets, const std::vector<kernels::Range>& parts,
                 const ParameterGroups& groups);

  const std::vector<Part>& parts() const { return parts_; }
  int slot_count() const { return held_.slot_count(); }  // of the allocated state
  // The state of `part` in slot `slot`; null if none is allocated.
  std::byte* state(std::size_t slot, const Part& part);
  // Bytes of the state of a replica that updates `elements` elements of this size.
  static std::size_t state_bytes(const UpdateKind& kind, std::int64_t elements, std::size_t element_bytes) {
    return static_cast<std::size_t>(kind.slot_count() * elements) * element_bytes;
  }
  // Bytes of the state, and of what an optimizer with tensor work needs beside it, now and after ensure_state().
  std::size_t held_bytes() const { return (state_ ? state_->bytes() : 0) + (tensors_ ? tensors_->bytes() : 0); }
  std::size_t bytes_for(const UpdateKind& kind) const;
  // Sets the kind of the next updates. Allocates its state, all zeros, unless it exists. Frees a state that this kind
  // does not keep; the device must then be idle.
  void ensure_state(const UpdateKind& kind);

  // Sets the kind of the next updates, whose state ensure_state() has allocated.
  void set_kind(const UpdateKind& kind);
  // Enqueues. Sets the reduced gradients of frozen parameters to zero.
  void zero_frozen_gradients(std::size_t part, kernels::Stream& stream);
  void update(std::size_t part, kernels::Stream& stream);

  // For optimizers with tensor work; otherwise null. Before update() of any part, find_direction() of every part, and
  // then TensorUpdate::finish().
  TensorUpdate* tensors() { return tensors_.get(); }
  void find_direction(std::size_t part, kernels::Stream& stream);

 private:
  struct Frozen {
    std::int64_t begin = 0;  // element
    std::unique_ptr<kernels::Op> clear;
  };

  std::unique_ptr<TensorUpdate> make_tensors(const UpdateKind& kind) const;  // null if it has no tensor work
  std::size_t state_bytes_for(const UpdateKind& kind) const;
  void* groups_of(const Part& part) const;

  Replica& replica_;
  const ParameterGroups& all_groups_;
  const std::size_t element_bytes_;
  const std::vector<Bucket> buckets_;
  std::vector<Part> parts_;
  std::vector<std::vector<Frozen>> frozen_;  // per part
  std::unique_ptr<kernels::Buffer> groups_;  // ParameterGroups::map(); null without groups
  UpdateKind kind_;
  std::vector<std::unique_ptr<kernels::Op>> ops_;  // one per part; null if it is empty
  std::vector<std::unique_ptr<kernels::Op>> direction_ops_;
  std::unique_ptr<TensorUpdate> tensors_;
  UpdateKind held_;                         // of the state
  std::unique_ptr<kernels::Buffer> state_;  // slot by slot
};

}  // namespace dp::engine
