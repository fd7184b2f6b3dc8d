// Offsets of all parameters in the flat arenas (values, gradients, optimizer state). They are equal on every replica
// and in forward order, so gradients become ready from the end to the start.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dp/model.h"
#include "kernels/device/backend.h"

namespace dp::engine {

struct ParameterEntry {
  std::string name;
  Shape shape;              // PyTorch's
  Shape stored;             // as the ops see it: the weights of a convolution have four dimensions
  kernels::Layout layout;   // in the arenas; the same in every plan
  std::int64_t offset = 0;  // in elements; a multiple of 16
  std::int64_t count = 0;   // elements, including the layout's padding, which stays zero
};

// A range of the arenas that is reduced, updated and broadcast in one piece.
struct Bucket {
  kernels::Range range;  // elements
  int first_entry = 0;   // the bucket is ready when the gradients of entries >= first_entry are
};

class ParameterTable {
 public:
  // `layouts`: one per parameter of the model, in its order. `granularity`, in elements: the arena size is a multiple
  // of it, padded with zeros, and buckets begin and end at multiples of it, possibly inside an entry. `vectors_first`:
  // parameters of one dimension (biases and normalisation) are stored before all other parameters and form the last
  // bucket.
  ParameterTable(const Model& model, const std::vector<kernels::Layout>& layouts, DType type,
                 std::int64_t granularity = 1, bool vectors_first = false);

  const std::vector<ParameterEntry>& entries() const { return entries_; }
  const ParameterEntry& entry(int index) const { return entries_[static_cast<std::size_t>(index)]; }
  std::int64_t size() const { return size_; }  // elements of one arena
  std::size_t bytes() const { return static_cast<std::size_t>(size_) * size_of(type_); }
  DType type() const { return type_; }
  // Elements at the arena's start that contain the vectors; 0 without `vectors_first`.
  std::int64_t vectors() const { return vectors_; }

  // Buckets in the order in which they become ready; the first one is at the arena's end. `last_bytes`: maximum size of
  // the last bucket, not counting the bucket of vectors, unless the first entry is larger; 0: no limit. `ends`: entries
  // that begin a bucket whatever its size.
  std::vector<Bucket> buckets(std::size_t bucket_bytes, std::size_t last_bytes = 0,
                              const std::vector<int>& ends = {}) const;
  // Removes frozen entries from the start and the end of each bucket, and buckets that contain only frozen entries.
  // `frozen` has a value for each entry.
  void trim(std::vector<Bucket>& buckets, const std::vector<bool>& frozen) const;

 private:
  std::int64_t begin_of(int index) const;  // offset of a bucket whose first complete entry is `index`
  std::int64_t last_end(std::size_t last_bytes) const;

  std::vector<ParameterEntry> entries_;
  std::int64_t size_ = 0, vectors_ = 0;
  DType type_;
  std::int64_t granularity_;
};

// The default bucket size: large enough that the latency of a collective is small compared with its transfer time.
// Networks too small to gain from overlap get a single bucket.
std::size_t default_bucket_bytes(std::size_t parameter_bytes);

}  // namespace dp::engine
