// Collectives and links between the GPUs of one process.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/comm/communicator.h"
#include "kernels/comm/p2p/peers.h"
#include "kernels/device/backend.h"
#include "kernels/device/cuda/context.h"
#include "kernels/device/host/spin.h"

namespace dp::kernels::cuda {

// Collectives between the GPUs of one process. Kernels read the memory of peers and add in a fixed order.

// Synchronises the ranks' threads while they enqueue a collective: each rank posts the data that the other ranks need.
// Lock-free; a rank writes only its own line.
class PostBoard {
 public:
  explicit PostBoard(int size) : lines_(static_cast<std::size_t>(size)) {}
  int size() const { return static_cast<int>(lines_.size()); }

  struct Post {
    const std::byte* data = nullptr;    // device memory of the rank
    const std::byte* staged = nullptr;  // copy of data in pinned memory; null: not needed
    cudaEvent_t reached = nullptr;      // recorded on the rank's stream
    CollectiveCall call;                // must be the same on all ranks
  };

  // Publishes the rank's post `number`, counted from 0.
  void put(int rank, std::uint64_t number, const Post& post) {
    Line& line = lines_[static_cast<std::size_t>(rank)];
    line.posts[number % kSlots] = post;
    line.posted.store(number + 1, std::memory_order_release);
  }
  // Waits until that rank has put post `number`. The post stays valid until the caller puts its own post `number` + 1.
  // Throws Aborted when the flag is set, GivenUp when `turn` is given up. Both may be null.
  const Post& wait(int rank, std::uint64_t number, const AbortFlag* abort, const CaptureTurn* turn) const {
    const Line& line = lines_[static_cast<std::size_t>(rank)];
    Spinner spinner;
    while (line.posted.load(std::memory_order_acquire) <= number) {
      if (abort != nullptr && abort->load(std::memory_order_relaxed)) throw Aborted();
      if (turn != nullptr && turn->given_up()) throw CaptureTurn::GivenUp();
      spinner.wait();
    }
    return line.posts[number % kSlots];
  }

  // Restarts the rank's posts at number 0.
  void forget(int rank) { lines_[static_cast<std::size_t>(rank)].posted.store(0, std::memory_order_release); }

 private:
  static constexpr std::uint64_t kSlots = 2;
  struct Line {
    alignas(64) std::atomic<std::uint64_t> posted{0};
    std::array<Post, kSlots> posts;
  };
  std::vector<Line> lines_;
};

// The communicator "p2p": replicas of one process on GPUs, possibly several per GPU. Ranks pull data: a rank publishes
// its memory, and the other ranks read it, by kernels in the fixed summation order or by copies. If a device cannot
// read a rank's memory, the rank publishes a copy in pinned host memory (docs/decisions/0018).
//
// The ranks' threads synchronise while they enqueue (PostBoard), so that each stream can wait for the other streams'
// events. No thread waits for a device. All collectives of one communicator use one stream, in the same order on all
// ranks.
class P2pCommunicator final : public Communicator {
 public:
  // `paths` covers the devices of all ranks; see connect().
  P2pCommunicator(std::shared_ptr<PostBoard> board, CudaContext& context, int rank,
                  const std::vector<std::vector<PeerPath>>& paths, std::string detours);

  int rank() const override { return rank_; }
  int size() const override { return board_->size(); }
  std::string name() const override { return detours_.empty() ? "p2p" : "p2p; " + detours_; }

  void set_summands(int summands, std::int64_t stride) override;
  void reserve(std::size_t bytes) override;
  bool joins_graphs() const override { return true; }
  void take_turns(CaptureTurn* turn) override { turn_ = turn; }
  void reset() override;
  void broadcast(void* data, std::int64_t count, DType type, int root, Stream& stream) override;
  void reduce(void* data, std::int64_t count, DType type, int root, Stream& stream) override;
  void all_reduce(void* data, std::int64_t count, DType type, Stream& stream) override;
  void reduce_scatter(void* data, std::int64_t count, DType type, Stream& stream) override;
  void all_gather(void* data, std::int64_t count, DType type, Stream& stream) override;
  void all_gather_parts(void* whole, std::size_t bytes, Stream& stream) override;
  void gather(const void* part, void* whole, std::span<const std::size_t> bytes, int root, Stream& stream) override;
  void scatter(const void* whole, void* part, std::span<const std::size_t> bytes, int root, Stream& stream) override;

 private:
  struct Call {  // a collective being enqueued
    CollectiveCall what;
    CudaStream& stream;
    std::size_t element;  // bytes
    Range own;            // this rank's slice
  };
  Call begin(Collective kind, std::int64_t count, DType type, int root, Stream& stream) const;
  Range slice(const Call& call, int rank) const { return slice_of(call.what.count, rank, size()); }

  // After the work now on the stream, other ranks may read `pieces` blocks of `bytes`, `stride` bytes apart, from
  // `data`. The stream waits until it may read what the other ranks have published.
  void publish(const Call& call, const void* data, std::size_t bytes, int pieces = 1, std::size_t stride = 0);
  // The stream waits until all ranks have finished reading this rank's data.
  void conclude(const Call& call) { meet(call, nullptr, nullptr); }
  const PostBoard::Post& post_of(int rank);  // waits for that rank's post number posts_
  void meet(const Call& call, const std::byte* data, const std::byte* staged);
  // The address from which this device reads the rank's latest publication.
  const std::byte* published(int rank) const;
  void pull(const Call& call, int from, std::size_t offset, void* dst, std::size_t bytes) const;
  // Writes to `out` the sum of elements `range` over all ranks' published summands.
  void sum(const Call& call, Range range, void* out);
  void pull_slices(const Call& call, std::byte* data);  // copies the other ranks' slices into `data`
  std::byte* scratch(std::size_t bytes);
  void reserve_copies(std::size_t bytes);

  std::shared_ptr<PostBoard> board_;
  CudaContext& context_;
  int rank_;
  std::vector<char> direct_;  // by rank: this device can read its memory
  bool staged_ = false;       // some device cannot read this rank's memory
  bool any_staged_ = false;   // any rank is staged
  std::string detours_;
  int summands_ = 1;
  std::int64_t stride_ = 0;            // elements
  std::uint64_t posts_ = 0;            // number of the next post
  CaptureTurn* turn_ = nullptr;        // set while a graph is recorded
  EventHandle reached_[2];             // events of this rank's posts, alternating
  std::vector<PostBoard::Post> seen_;  // latest post of each rank
  struct PinnedCopy {
    PinnedMemory memory;
    std::size_t bytes = 0;
  };
  PinnedCopy copies_[2];  // alternating: other ranks may still read the previous one
  DeviceMemory scratch_;
  std::size_t scratch_bytes_ = 0;
  // Outgrown buffers. Recorded graphs still use them.
  std::vector<PinnedMemory> retired_copies_;
  std::vector<DeviceMemory> retired_scratch_;
  std::vector<const void*> summed_;  // summand pointers for tree_sum()
};

// One communicator per context, in rank order. All contexts must be CudaContexts.
std::vector<std::unique_ptr<Communicator>> make_p2p_communicators(std::span<Context* const> contexts);

// A link between two GPUs of one process. The sender copies each tensor to a queue on its own device, or in host memory
// if the receiver's device cannot read that. A stream of the link copies it to a second queue on the receiver's device
// while the receiver computes.
//
// A stream can only wait for events that were recorded before. So each end's thread waits, while it enqueues, until the
// other end has enqueued what it depends on. No thread waits for a device.
class CudaLink final : public Link {
 public:
  CudaLink(CudaContext& sender, CudaContext& receiver);

  void reserve(std::size_t bytes) override;
  std::size_t held(End end) const override {
    return direct_ || end == End::receiver ? kSlots * slots_.front().bytes : 0;
  }
  void send(const void* data, std::size_t bytes, Stream& stream) override;
  void receive(void* data, std::size_t bytes, Stream& stream) override;
  bool joins_graphs() const override { return true; }
  void take_turns(End end, CaptureTurn* turn) override { turns_[static_cast<std::size_t>(end)] = turn; }
  void reset() override;

 private:
  struct Slot {
    DeviceMemory memory, arrived;  // of the sender's and of the receiver's device
    PinnedMemory pinned;
    std::size_t bytes = 0, used = 0;   // used: of the tensor in it
    EventHandle sent, taken, emptied;  // taken: `memory` has been read; emptied: `arrived` has been read
  };
  Slot& slot(std::uint64_t number) { return slots_[number % kSlots]; }
  void* place(const Slot& slot) const { return direct_ ? slot.memory.get() : slot.pinned.get(); }
  // Waits until `count` exceeds `number`. Throws Aborted if the abort flag of the end's context is set, GivenUp if the
  // capture is given up.
  void await(const std::atomic<std::uint64_t>& count, std::uint64_t number, End end);

  CudaContext &sender_, &receiver_;
  bool direct_ = false;  // the receiver's device can read the sender's memory
  std::unique_ptr<Stream> fetch_;
  std::array<Slot, kSlots> slots_;
  std::atomic<std::uint64_t> sent_{0}, received_{0};  // enqueued since reset(); each is written by its own end
  std::array<CaptureTurn*, 2> turns_{};               // by end: set while a graph is recorded
};

}  // namespace dp::kernels::cuda
