// Collectives between replicas, and links between the stages of a pipeline.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dp/shape.h"

namespace dp::kernels {

// The description of a collective call. Ranks compare it to detect mismatched calls.
enum class Collective : std::uint8_t {
  broadcast,
  reduce,
  all_reduce,
  reduce_scatter,
  all_gather,
  all_gather_parts,
  gather,
  scatter
};

// All members must be equal on all ranks.
struct CollectiveCall {
  Collective kind = Collective::broadcast;
  DType type = DType::u8;
  int root = 0;
  std::int64_t count = 0;        // elements; for calls in parts: bytes of all ranks together
  std::uint64_t parts_hash = 0;  // of the part sizes of gather and scatter
  int summands = 1;              // per rank, in reductions
  friend bool operator==(const CollectiveCall&, const CollectiveCall&) = default;
};
std::string to_string(const CollectiveCall& call);  // "reduce of 10 float32 elements to root 0"

// For parts_hash: FNV-1a, one step per size.
inline constexpr std::uint64_t kEmptyPartsHash = 0xcbf29ce484222325u;
constexpr std::uint64_t hash_part(std::uint64_t hash, std::size_t bytes) { return (hash ^ bytes) * 0x100000001b3u; }

// Error(usage) with both calls unless `mine` equals `theirs`. `name` is the communicator, `number` the call number.
void require_same_call(const std::string& name, std::uint64_t number, int rank, const CollectiveCall& mine, int other,
                       const CollectiveCall& theirs);

// Collectives between replicas. All ranks make the same calls with the same sizes in the same order. Each call enqueues
// work on a stream of the caller's context and does not wait for that work.
class CaptureTurn;
class Stream;
class TraceRing;

struct Range {
  std::int64_t begin = 0, end = 0;  // elements
  std::int64_t size() const { return end - begin; }
  friend bool operator==(const Range&, const Range&) = default;
};

// Slices of a collective are multiples of this number of elements.
inline constexpr std::int64_t kSliceBlock = 1024;
// The slice of `count` elements that `rank` owns in reduce_scatter and all_gather. Slices are contiguous, in rank
// order, and multiples of kSliceBlock, except that the last one may be shorter. Their sizes differ by at most one
// block. Slices may be empty.
Range slice_of(std::int64_t count, int rank, int size);
// Offset of a rank's part in gather and scatter: the sum of the sizes of all lower ranks.
std::size_t bytes_before(std::span<const std::size_t> bytes, int rank);

// Reductions add the ranks' values per element in a fixed binary tree of the rank index, ((0+1)+(2+3))+..., so that
// every collective and every split of a range gives the same bits (docs/decisions/0006). Exceptions: "nccl" and "mpi"
// add ranks in the library's order. A rank may contribute several summands. The tree then covers all summands in order
// and does not depend on which rank holds which summand. bfloat16 is added in float32 and rounded once at the end;
// "nccl" chooses its own rounding. When the stream has passed a call, the caller may overwrite the memory of the call.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string name() const = 0;

  // In all later reductions every rank contributes `summands` arrays, at data, data + stride, data + 2 * stride, ...
  // (stride in elements). The result replaces the first array; the other arrays are unchanged. All ranks must pass the
  // same values.
  virtual void set_summands(int summands, std::int64_t stride) = 0;
  // Allocates the scratch memory for calls on up to `bytes` bytes of data (for reductions: bytes of each summand), so
  // that these calls allocate nothing. Call it after set_summands().
  virtual void reserve(std::size_t /*bytes*/) {}

  // Adds the bytes that each later call transfers to and from other ranks to the spans of the ring. Pass the trace ring
  // of the stream that carries the calls. The default does nothing, for communicators that count through their streams
  // or cannot count.
  virtual void trace(TraceRing*) {}

  // Whether ranks order their streams by events. All replicas of this process must then be captured into one graph.
  virtual bool joins_graphs() const { return false; }
  // Sets the lock for capturing all ranks into one graph; null ends this. During capture a call releases the lock while
  // it waits for other ranks, and throws CaptureTurn::GivenUp after give_up().
  virtual void take_turns(CaptureTurn*) {}
  // Call it on every rank after a failed capture, while no rank is in a call. Restarts the numbering of calls.
  virtual void reset() {}

  // `data` is this rank's array of `count` elements of `type` (f32, f64 or bf16; "mpi" cannot reduce bf16). All calls
  // work in place.
  virtual void broadcast(void* data, std::int64_t count, DType type, int root, Stream& stream) = 0;
  virtual void reduce(void* data, std::int64_t count, DType type, int root,
                      Stream& stream) = 0;  // changes only the root's data
  virtual void all_reduce(void* data, std::int64_t count, DType type, Stream& stream) = 0;
  virtual void reduce_scatter(void* data, std::int64_t count, DType type,
                              Stream& stream) = 0;  // changes only this rank's slice_of(count)
  virtual void all_gather(void* data, std::int64_t count, DType type,
                          Stream& stream) = 0;  // in: own slice; out: all slices

  // `whole` holds size() parts of `bytes` bytes each, in rank order. In: this rank's part at its position. Out: all
  // parts.
  virtual void all_gather_parts(void* whole, std::size_t bytes, Stream& stream) = 0;

  // One part per rank; rank r's has bytes[r] bytes. At the root `whole` holds the parts concatenated in rank order.
  virtual void gather(const void* part, void* whole, std::span<const std::size_t> bytes, int root, Stream& stream) = 0;
  virtual void scatter(const void* whole, void* part, std::span<const std::size_t> bytes, int root, Stream& stream) = 0;
};

// Fault injection (DP_FAIL=fail:collective:N): from now on, the N-th call of a communicator or link in host memory
// throws Error(device). Set it while no replica works. rank: counts the calls of its communicators only; -1: all.
struct FailingCall {
  std::atomic<std::int64_t> left{0};  // 0: none fails
  int rank = -1;
};
extern FailingCall failing_call;
void count_call(int rank);  // rank of a link: -1

// Split point of [begin, end) in the fixed summation tree.
constexpr int tree_split(int begin, int end) {
  int half = 1;
  while (half * 2 < end - begin) half *= 2;
  return begin + half;
}

// The part of a process group that a communicator needs to connect processes: an exchange of short messages before data
// can flow.
class Rendezvous {
 public:
  virtual ~Rendezvous() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual int local_rank() const = 0;  // index among the ranks on this host, in rank order
  virtual int local_size() const = 0;
  // Whether all ranks run on one host and can see each other's processes, so that shared memory can carry data.
  virtual bool one_host() const = 0;
  virtual double timeout_seconds() const = 0;  // limit of a wait for a missing rank

  // All-gather of short messages: returns `mine` of every rank, in rank order; at most 64 KiB each. All ranks call it
  // the same number of times in the same order. Throws the error that ended the process group, or Error(timeout) with
  // the missing ranks.
  virtual std::vector<std::string> exchange(std::string_view mine) = 0;
};

// A queue that passes tensors from one stage of a pipeline to a neighbouring stage. The sender waits for the receiver
// only if the queue is full.
class CaptureTurn;
class Stream;

class Link {
 public:
  static constexpr std::size_t kSlots = 2;  // tensors that can be sent but not yet received

  enum class End { sender, receiver };

  virtual ~Link() = default;
  // Allocates memory for tensors of up to `bytes` bytes. Called by the sender's thread, while no transfer is in
  // progress.
  virtual void reserve(std::size_t bytes) = 0;
  virtual std::size_t held(End end) const = 0;  // bytes of that memory on the device of one end
  // Enqueues a copy of `data` into the queue, after the earlier work of `stream`. When the stream has passed it, the
  // caller may overwrite `data`. The copy waits while the queue is full. Called by the sender's thread.
  virtual void send(const void* data, std::size_t bytes, Stream& stream) = 0;
  // Enqueues a copy of the next tensor to `data`. Later work of `stream` waits until it has been sent. Error(device) if
  // the tensor has another size. Called by the receiver's thread.
  virtual void receive(void* data, std::size_t bytes, Stream& stream) = 0;

  // The next three have the same meaning as in Communicator. Each end's thread sets its own lock.
  virtual bool joins_graphs() const { return false; }
  virtual void take_turns(End, CaptureTurn*) {}
  // Discards the record of earlier transfers, so later ones do not wait for them. Call it while neither end is in a
  // call.
  virtual void reset() {}
};

struct LinkEnd {
  Link* link = nullptr;
  Link::End end = {};
};

}  // namespace dp::kernels
