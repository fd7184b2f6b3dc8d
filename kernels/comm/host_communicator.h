// Collectives and links in host memory, between threads or between processes that share memory.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/comm/communicator.h"
#include "kernels/device/backend.h"
#include "kernels/device/host/host_context.h"
#include "kernels/device/host/memory.h"
#include "kernels/low_float.h"

namespace dp::kernels {

// A link between two threads of one process, through host memory.
class HostLink final : public Link {
 public:
  explicit HostLink(Context& sender) : sender_(sender) {}

  void reserve(std::size_t bytes) override;
  std::size_t held(End end) const override {
    return end == End::sender && slots_.front().memory ? kSlots * slots_.front().memory->bytes() : 0;
  }
  void send(const void* data, std::size_t bytes, Stream& stream) override;
  void receive(void* data, std::size_t bytes, Stream& stream) override;

 private:
  struct Slot {
    std::unique_ptr<Buffer> memory;
    std::size_t bytes = 0;  // of the tensor in it
  };
  Slot& slot(std::uint64_t number) { return slots_[number % kSlots]; }
  bool put(const void* data, std::size_t bytes);  // false: the queue is full
  bool take(void* data, std::size_t bytes);       // false: the queue is empty

  Context& sender_;
  std::array<Slot, kSlots> slots_;
  std::atomic<std::uint64_t> sent_{0}, received_{0};  // tensors so far; each is written by its own end only
};

// Reduction over ranks in the fixed order of communicator.h, in one pass over memory. Every split of a range gives the
// same bits.

// For each element i of `range`: out[i] = the tree sum of parts[0][i], parts[1][i], ... for every out in `outs`. An out
// may alias a part. All pointers are to elements of type T. BFloat16 is added in float32 and rounded once. Uses
// `threads` OpenMP threads.
template <typename T>
void tree_sum(std::span<void* const> parts, std::span<void* const> outs, Range range, int threads);

extern template void tree_sum<float>(std::span<void* const>, std::span<void* const>, Range, int);
extern template void tree_sum<double>(std::span<void* const>, std::span<void* const>, Range, int);
extern template void tree_sum<BFloat16>(std::span<void* const>, std::span<void* const>, Range, int);

// Common base of the communicators of host backends. It checks each call and converts it to a CollectiveCall for
// enqueue().
class HostCollectives : public Communicator {
 public:
  int rank() const override { return rank_; }
  int size() const override { return size_; }

  void set_summands(int summands, std::int64_t stride) override;
  void broadcast(void* data, std::int64_t count, DType type, int root, Stream& stream) override;
  void reduce(void* data, std::int64_t count, DType type, int root, Stream& stream) override;
  void all_reduce(void* data, std::int64_t count, DType type, Stream& stream) override;
  void reduce_scatter(void* data, std::int64_t count, DType type, Stream& stream) override;
  void all_gather(void* data, std::int64_t count, DType type, Stream& stream) override;
  void all_gather_parts(void* whole, std::size_t bytes, Stream& stream) override;
  void gather(const void* part, void* whole, std::span<const std::size_t> bytes, int root, Stream& stream) override;
  void scatter(const void* whole, void* part, std::span<const std::size_t> bytes, int root, Stream& stream) override;

 protected:
  HostCollectives(int rank, int size) : rank_(rank), size_(size) {}

  // Enqueues a checked call. `data` is the array, or `whole` for a call in parts. Only for gather and scatter: `part`
  // is this rank's part, and `bytes` holds the sizes of all parts, valid until enqueue() returns.
  virtual void enqueue(const CollectiveCall& call, void* data, void* part, std::span<const std::size_t> bytes,
                       Stream& stream) = 0;

  const int rank_, size_;
  int summands_ = 1;
  std::int64_t stride_ = 0;  // elements

 private:
  void enqueue_typed(Collective kind, void* data, std::int64_t count, DType type, int root, Stream& stream);
  void enqueue_parts(Collective kind, void* whole, void* part, std::span<const std::size_t> bytes, int root,
                     Stream& stream);
  void submit(const CollectiveCall& call, void* data, void* part, std::span<const std::size_t> bytes, Stream& stream);
  void check_root(int root) const;
};

// Synchronisation state of the ranks of one communicator. Each rank announces its calls in order, reads the other
// ranks' calls, and publishes its progress. No locks and no allocation; a rank writes only its own line.
class CallBoard {
 public:
  // For ranks that are threads of one process.
  CallBoard(std::string name, int size);
  // For ranks that are processes. `lines` is shared memory of lines_bytes(size) bytes, zeroed and mapped by all ranks.
  // `peers` maps the data of other ranks. The board keeps `memory`, the owner of `lines`, for its lifetime.
  CallBoard(std::string name, int size, void* lines, std::shared_ptr<void> memory, std::unique_ptr<PeerMemory> peers);
  static std::size_t lines_bytes(int size) { return static_cast<std::size_t>(size) * sizeof(Line); }

  int size() const { return static_cast<int>(ranks_.size()); }

  // Announces `call` as the rank's call number `number`, counted from 0. Returns false and does nothing while another
  // rank still uses the slot that this call would overwrite. Error(usage) if other ranks cannot access `data`.
  bool announce(int rank, std::uint64_t number, const CollectiveCall& call, void* data);
  // Whether `other` has announced its call number `number`. Error(usage) with both calls if they differ.
  bool met(int rank, int other, std::uint64_t number) const;
  void* data(int rank, std::uint64_t number) const;

  // finish(): this rank no longer accesses other ranks' memory for this call. leave(): it also no longer reads their
  // announcements.
  void finish(int rank, std::uint64_t number) { line(rank).finished.store(number + 1, std::memory_order_release); }
  void leave(int rank, std::uint64_t number) { line(rank).left.store(number + 1, std::memory_order_release); }
  bool all_finished(std::uint64_t number) const;

 private:
  static constexpr std::uint64_t kSlots = 16;  // calls that a rank may be ahead of another
  struct Slot {
    CollectiveCall call;
    void* data = nullptr;  // address in the process of the announcing rank
    SharedPlace place;     // for processes: where other ranks find the data
  };
  struct Line {  // written only by its rank; the counters count calls; initially all zero
    alignas(64) std::atomic<std::uint64_t> announced{0};
    std::atomic<std::uint64_t> finished{0};
    std::atomic<std::uint64_t> left{0};
    std::uint64_t known_left = 0;  // cached minimum of `left` over all ranks
    alignas(64) std::array<Slot, kSlots> slots;
  };
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
  Line& line(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  const Line& line(int rank) const { return ranks_[static_cast<std::size_t>(rank)]; }

  std::string name_;
  std::vector<Line> own_lines_;
  std::shared_ptr<void> memory_;
  std::unique_ptr<PeerMemory> peers_;  // null: all ranks are in this process
  std::span<Line> ranks_;
};

// The communicator "host". Its ranks are threads of one process, or processes of one host that share memory
// (wire_communicator.h).
//
// All collectives of one handle use one stream, in the same order on all ranks. To overlap calls on several streams,
// make one set of handles per stream; sets are independent. A handle must outlive the work enqueued with it. Ranks
// write into each other's memory: the memory passed to a call must stay valid until the call is done on every rank, or
// until every rank's thread has stopped.
class HostCommunicator final : public HostCollectives {
 public:
  // `threads` OpenMP threads compute this rank's slice of a reduction.
  HostCommunicator(std::shared_ptr<CallBoard> board, int rank, int threads);

  std::string name() const override { return "host"; }

  void set_summands(int summands, std::int64_t stride) override;
  void trace(TraceRing* ring) override { trace_ = ring; }

 private:
  class Run;  // a call in progress, as a task of the stream
  void enqueue(const CollectiveCall& call, void* data, void* part, std::span<const std::size_t> bytes,
               Stream& stream) override;
  void count_bytes(std::size_t bytes) {
    if (trace_ != nullptr) trace_->count_bytes(static_cast<std::int64_t>(bytes));
  }
  template <typename T>
  void sum(const CollectiveCall& call, std::uint64_t number);

  std::shared_ptr<CallBoard> board_;
  int threads_;
  std::uint64_t calls_ = 0;
  TraceRing* trace_ = nullptr;
  std::vector<void*> pointers_, outs_;  // scratch of the running call: all summands; destinations of the result
};

// Returns one handle per context, in rank order. Error(usage) for a context of another backend or a name other than
// "host".
std::vector<std::unique_ptr<Communicator>> make_host_communicators(std::string_view name,
                                                                   std::span<Context* const> contexts);

}  // namespace dp::kernels
