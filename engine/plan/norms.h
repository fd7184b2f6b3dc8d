// The batch normalisations of a model: where their running statistics lie in a replica's buffer arena, and where the
// statistics of a step's parts lie in its moments arena.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dp/model.h"

namespace dp::engine {

struct Norm {
  std::string name;  // the layer's
  std::int64_t channels = 0;
  std::int64_t cells = 0;  // height times width
  double eps = 0, momentum = 0;
  std::int64_t mean = 0, variance = 0;  // elements from the buffer arena's start
  // Bytes from the moments arena's start. Each is an array over the parts of a batch, one part for each shard.
  std::size_t moments = 0;  // forward: 1 + 2C doubles a part
  std::size_t sums = 0;     // backward: 2C doubles a part

  std::size_t moments_bytes() const { return static_cast<std::size_t>(1 + 2 * channels) * sizeof(double); }
  std::size_t sums_bytes() const { return static_cast<std::size_t>(2 * channels) * sizeof(double); }
};

class NormTable {
 public:
  // In the order in which they run. `parts`: shards of a batch, over all replicas.
  NormTable(const Model& model, int parts);

  int count() const { return static_cast<int>(norms_.size()); }
  int parts() const { return parts_; }
  const Norm& norm(int index) const { return norms_[static_cast<std::size_t>(index)]; }
  const Norm* of_one_cell() const;  // the first that has as many values a channel as images, or null
  std::int64_t buffer_size() const { return buffer_size_; }     // elements
  std::size_t moments_bytes() const { return moments_bytes_; }  // of the arena

 private:
  std::vector<Norm> norms_;
  int parts_;
  std::int64_t buffer_size_ = 0;
  std::size_t moments_bytes_ = 0;
};

}  // namespace dp::engine
