// Gradient reduction in bfloat16 (docs/decisions/0026). A bucket is rounded into a separate buffer and reduced there.
// The part of the result that this replica needs is converted back into the gradient arena.
#pragma once

#include <memory>
#include <vector>

#include "engine/layers/parameters.h"
#include "engine/step/replica.h"

namespace dp::engine {

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

}  // namespace dp::engine
