// The batch normalisations of a model, with the offsets of their running statistics in a replica's buffer arena and of
// the batch statistics in its moments arena.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dp/model.h"

namespace dp::engine {

struct Norm {
  std::string name;  // of the layer
  int layer = 0;     // its index in the model
  std::int64_t channels = 0;
  std::int64_t cells = 0;  // height times width
  double eps = 0, momentum = 0;
  std::int64_t mean = 0, variance = 0;  // offsets in the buffer arena, in elements
  // Offsets in the moments arena, in bytes, for a batch of one shard. With n shards each is an array of n entries, and
  // the offsets are n times these.
  std::size_t moments = 0;  // forward: 1 + 2C doubles per shard
  std::size_t sums = 0;     // backward: 2C doubles per shard

  std::size_t moments_bytes() const { return static_cast<std::size_t>(1 + 2 * channels) * sizeof(double); }
  std::size_t sums_bytes() const { return static_cast<std::size_t>(2 * channels) * sizeof(double); }
};

class NormTable {
 public:
  explicit NormTable(const Model& model);  // in execution order

  int count() const { return static_cast<int>(norms_.size()); }
  const Norm& norm(int index) const { return norms_[static_cast<std::size_t>(index)]; }
  const Norm* of_one_cell() const;                           // the first with one value per channel and image, or null
  std::int64_t buffer_size() const { return buffer_size_; }  // elements
  std::size_t moments_bytes() const { return moments_bytes_; }  // of the moments arena, per shard of a batch

 private:
  std::vector<Norm> norms_;
  std::int64_t buffer_size_ = 0;
  std::size_t moments_bytes_ = 0;
};

}  // namespace dp::engine
