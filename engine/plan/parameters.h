// Where every parameter lies in the flat arenas (values, gradients, momenta): the same offsets on every
// replica, in forward order, so that gradients become ready from the end to the beginning.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dp/model.h"
#include "kernels/backend.h"

namespace dp::engine {

struct ParameterEntry {
  std::string name;
  Shape shape;              // PyTorch's
  kernels::Layout layout;   // in the arenas, the same in every plan
  std::int64_t offset = 0;  // elements from the arena's start; a multiple of 16
  std::int64_t count = 0;   // elements with the layout's padding, which stays zero
};

// A range of the arenas that is reduced, updated and broadcast as one.
struct Bucket {
  kernels::Range range;  // elements
  int first_entry = 0;   // the bucket is ready when the gradients of entries >= first_entry are
};

class ParameterTable {
 public:
  // `layouts` has one per parameter of the model, in its order. `granularity`: in elements; the arenas' size is a multiple of it, padded
  // with zeros, and buckets begin and end at multiples, in the middle of an entry where need be. `vectors_first`: parameters of one
  // dimension, biases and those of normalisation, are stored before all others, and are the bucket that becomes ready last.
  ParameterTable(const Model& model, const std::vector<kernels::Layout>& layouts, DType type,
                 std::int64_t granularity = 1, bool vectors_first = false);

  const std::vector<ParameterEntry>& entries() const { return entries_; }
  const ParameterEntry& entry(int index) const { return entries_[static_cast<std::size_t>(index)]; }
  std::int64_t size() const { return size_; }  // elements of one arena
  std::size_t bytes() const { return static_cast<std::size_t>(size_) * size_of(type_); }
  DType type() const { return type_; }
  std::int64_t vectors() const {
    return vectors_;
  }  // elements of the arena before the others; 0 where they lie between

  // Buckets in the order in which they become ready: the first lies at the arena's end. `last_bytes`: the most that the last one holds,
  // not counting the vectors' bucket, unless the first entry is larger; 0: no limit.
  std::vector<Bucket> buckets(std::size_t bucket_bytes, std::size_t last_bytes = 0) const;

 private:
  std::int64_t begin_of(int index) const;  // of a bucket whose first whole entry is `index`
  std::int64_t last_end(std::size_t last_bytes) const;

  std::vector<ParameterEntry> entries_;
  std::int64_t size_ = 0, vectors_ = 0;
  DType type_;
  std::int64_t granularity_;
};

// The bucket size used when none is asked for: large enough that the cost of a collective is small beside its
// transfer, and a single bucket for networks too small to gain from overlap.
std::size_t default_bucket_bytes(const ParameterTable& table);

}  // namespace dp::engine
