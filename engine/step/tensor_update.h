// What an optimizer that computes with whole tensors (dp::TensorWork) needs on one replica, between the reduction of
// the gradients and the update of the weights: the directions of the update, and norms or matrices.
//
// Each replica computes the directions of its parts. With sharded updates GradientSync then joins, for each bucket, the
// partial sums of the norms, or the directions themselves. A replica orthogonalises each matrix of which it updates a
// part, from the directions of the whole matrix. Hence the bits do not depend on the number of replicas.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "engine/optimizer/optimizer.h"
#include "engine/step/open_device.h"

namespace dp::engine {

class TensorUpdate {
 public:
  // Allocates no device memory. `buckets`: of this stage; none if the replica takes no part in updates. `parts`: what
  // this replica updates of each bucket.
  TensorUpdate(kernels::Context& context, const ParameterTable& table, const std::vector<Bucket>& buckets,
               const std::vector<kernels::Range>& parts, const ParameterGroups& groups, const UpdateKind& kind);

  const UpdateKind& kind() const { return kind_; }
  TensorWork work() const { return kernels::tensor_work(kind_); }
  std::size_t bytes() const { return bytes_; }  // of the memory that allocate() allocates
  void allocate(OpenDevice& device);            // waits for the compute stream

  std::int64_t segments_in(std::size_t part) const { return own_[part].second - own_[part].first; }
  // Number of partial sums (doubles) of the elements of a bucket before this one, at which a replica's part may begin.
  std::int64_t partials_before(std::int64_t element) const { return 2 * segment_at(element); }

  // Device memory, after allocate(). direction(): from this element of the arenas on.
  std::byte* segments(std::size_t part) const;
  std::byte* direction(std::int64_t element) const { return at(static_cast<std::size_t>(element) * element_bytes_); }
  double* partials(std::int64_t element) const;
  std::byte* ratios() const { return at(ratios_at_); }

  // Enqueues the work with whole tensors.
  void finish(kernels::Stream& stream);

 private:
  struct Matrix {
    std::int64_t begin = 0;  // element of the arenas
    std::unique_ptr<kernels::Op> to_rows, orthogonalize, from_rows;
  };

  void add_segments(const ParameterEntry& entry, const std::vector<Bucket>& buckets);
  void add_matrix(kernels::Context& context, const ParameterEntry& entry, DType type);
  std::int64_t segment_at(std::int64_t element) const;  // the first one that does not begin before this element
  std::byte* at(std::size_t offset) const { return static_cast<std::byte*>(memory_->data()) + offset; }

  const UpdateKind kind_;
  const std::size_t element_bytes_;
  std::vector<kernels::TensorSegment> segments_;  // of all buckets, in the arenas' order and with their offsets
  std::vector<std::int64_t> first_;               // segment of each tensor, in the arenas' order; one more than tensors
  std::vector<std::pair<std::int64_t, std::int64_t>> own_;  // segments of each part
  std::vector<kernels::Range> parts_;
  std::vector<Matrix> matrices_;
  std::unique_ptr<kernels::Op> trust_ratios_;
  // Offsets in the memory, which begins with the directions of all parameters. rows: of the largest matrix, row-major.
  std::size_t segments_at_ = 0, first_at_ = 0, partials_at_ = 0, ratios_at_ = 0, rows_at_ = 0, workspace_at_ = 0;
  std::size_t bytes_ = 0;
  std::unique_ptr<kernels::Buffer> memory_;
};

}  // namespace dp::engine
