// Gradients that are summed in bfloat16: a bucket is rounded into memory of its own, summed there, and what this replica needs of
// the sum is widened into the arena again.
#pragma once

#include <memory>
#include <vector>

#include "engine/plan/parameters.h"
#include "engine/replica/replica.h"

namespace dp::engine {

class RoundedGradients {
 public:
  // Room for one bucket, of every lane: the next is rounded when the stream has passed the one before.
  RoundedGradients(Replica& replica, const std::vector<Bucket>& buckets);
  static std::size_t bytes(const std::vector<Bucket>& buckets, std::size_t lanes);

  // In the order of the buckets. `own`: what this replica needs of the sum, within the range.
  void add_bucket(kernels::Range range, kernels::Range own);

  void* data() { return buffer_->data(); }                  // of the first lane
  std::int64_t stride() const { return stride_; }           // elements from a lane to the next
  void round(std::size_t bucket, kernels::Stream& stream);  // every lane's
  void widen(std::size_t bucket, kernels::Stream& stream);  // the sum, which lies in the first lane

 private:
  struct Ops {
    kernels::Range range, own;                  // elements of the arenas
    std::unique_ptr<kernels::Op> round, widen;  // widen: null where this replica needs nothing
  };

  Replica& replica_;
  const std::int64_t stride_;
  std::unique_ptr<kernels::Buffer> buffer_;
  std::vector<Ops> buckets_;
};

}  // namespace dp::engine
