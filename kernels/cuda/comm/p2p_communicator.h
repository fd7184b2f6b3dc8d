// The communicator "p2p": replicas of one process on GPUs, possibly several per GPU. Ranks pull data: a rank publishes
// its memory, and the other ranks read it, by kernels in the fixed summation order or by copies. If a device cannot
// read a rank's memory, the rank publishes a copy in pinned host memory (docs/decisions/0018).
//
// The ranks' threads synchronise while they enqueue (post_board.h), so that each stream can wait for the other streams'
// events. No thread waits for a device. All collectives of one communicator use one stream, in the same order on all
// ranks.
#pragma once

#include <memory>
#include <vector>

#include "kernels/cuda/comm/peers.h"
#include "kernels/cuda/comm/post_board.h"
#include "kernels/cuda/context.h"

namespace dp::kernels::cuda {

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

}  // namespace dp::kernels::cuda
