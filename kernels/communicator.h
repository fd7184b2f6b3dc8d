// Data between replicas. Every rank makes the same calls with the same sizes in the same order; each call is
// enqueued on a stream of the caller's own context and returns at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "dp/shape.h"

namespace dp::kernels {

class CaptureTurn;
class Stream;
class TraceRing;

struct Range {
  std::int64_t begin = 0, end = 0;  // elements
  std::int64_t size() const { return end - begin; }
  friend bool operator==(const Range&, const Range&) = default;
};

// Elements that slices of a collective are multiples of.
inline constexpr std::int64_t kSliceBlock = 1024;
// The part of `count` elements that `rank` of `size` owns in reduce_scatter and all_gather: consecutive, whole multiples of
// kSliceBlock except the last, sizes that differ by at most one block. Some may be empty.
Range slice_of(std::int64_t count, int rank, int size);

// Sums are taken per element over the ranks as a fixed binary tree of the rank index ((0+1)+(2+3))+..., so that every
// collective and every split of a range gives the same bits; but for "nccl", whose order over the ranks is its own. A rank may bring
// several summands: the tree is then that of all of them in order, whatever rank brings which. Sums of bfloat16 are added in float32 and
// rounded once, at the end ("nccl" rounds as it likes). When a stream passes a call, the caller's memory may be written again.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string name() const = 0;

  // From now on every rank brings `summands` arrays to each sum, at data, data + stride, data + 2 * stride, ...; the result
  // goes where the first lies, the others stay. The same on every rank.
  virtual void set_summands(int summands, std::int64_t stride) = 0;
  // Allocates what calls on up to `bytes` bytes of data need (of sums: of each summand), so that they allocate nothing. After bring().
  virtual void reserve(std::size_t /*bytes*/) {}

  // From now on counts what its calls bring to and from other ranks to the spans of that ring, the one of the stream that they
  // go through. Communicators that count through their streams, or do not know, do nothing here.
  virtual void trace(TraceRing*) {}

  // Whether ranks wait for each other's streams, so that all that are in this process come into one graph.
  virtual bool joins_graphs() const { return false; }
  // While the ranks' calls are recorded into one graph: a call lets the others have the turn while it waits for them, and ends by
  // CaptureTurn::GivenUp when that says so. Null: no more.
  virtual void take_turns(CaptureTurn*) {}
  // After a recording that failed: by every rank, while none makes a call. Calls count from here.
  virtual void reset() {}

  // `data` is this rank's own range of `count` elements of `type` (f32, f64, bf16; "mpi" sums no bf16), in place.
  virtual void broadcast(void* data, std::int64_t count, DType type, int root, Stream& stream) = 0;
  virtual void reduce(void* data, std::int64_t count, DType type, int root,
                      Stream& stream) = 0;  // only root's data changes
  virtual void all_reduce(void* data, std::int64_t count, DType type, Stream& stream) = 0;
  virtual void reduce_scatter(void* data, std::int64_t count, DType type,
                              Stream& stream) = 0;  // only slice_of(count, rank) changes
  virtual void all_gather(void* data, std::int64_t count, DType type,
                          Stream& stream) = 0;  // in: own slice; out: everything

  // `whole` holds size() parts of `bytes` each; in: own part at its place, out: everything.
  virtual void all_gather_parts(void* whole, std::size_t bytes, Stream& stream) = 0;

  // Parts of different sizes in bytes, one per rank, concatenated in rank order at the root.
  virtual void gather(const void* part, void* whole, std::span<const std::size_t> bytes, int root, Stream& stream) = 0;
  virtual void scatter(const void* whole, void* part, std::span<const std::size_t> bytes, int root, Stream& stream) = 0;
};

// Half-open tree of the fixed summation order: the split point of [begin, end).
constexpr int tree_split(int begin, int end) {
  int half = 1;
  while (half * 2 < end - begin) half *= 2;
  return begin + half;
}

}  // namespace dp::kernels
