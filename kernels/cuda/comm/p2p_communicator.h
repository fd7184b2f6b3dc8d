// The communicator "p2p": replicas of one process on GPUs, several on one GPU too. Data are pulled: a rank publishes its
// memory, the others read it, by kernels in the fixed summation order or by copies. Where a device cannot read another's memory,
// what is published goes through pinned host memory.
//
// The ranks' threads meet while they enqueue (post_board.h), so that each can make its stream wait for the others'; no thread waits
// for a device. As with the host communicator all collectives of one handle go through one stream, in the one order that all
// ranks have.
#pragma once

#include <memory>
#include <vector>

#include "kernels/cuda/comm/peers.h"
#include "kernels/cuda/comm/post_board.h"
#include "kernels/cuda/context.h"

namespace dp::kernels::cuda {

class P2pCommunicator final : public Communicator {
 public:
  // `paths` of all ranks' devices, as connect() gives them.
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
  struct Call {  // a collective while it is enqueued
    CollectiveCall what;
    CudaStream& stream;
    std::size_t element;  // bytes
    Range own;            // this rank's slice
  };
  Call begin(Collective kind, std::int64_t count, DType type, int root, Stream& stream) const;
  Range slice(const Call& call, int rank) const { return slice_of(call.what.count, rank, size()); }

  // From the stream's present point on the others may read `bytes` at `data`, and as many at each further stride; the stream
  // waits until it may read what they have published.
  void publish(const Call& call, const void* data, std::size_t bytes, int pieces = 1, std::size_t stride = 0);
  // The stream waits until no rank reads any more what this one has published.
  void conclude(const Call& call) { meet(call, nullptr, nullptr); }
  const PostBoard::Post& post_of(int rank);  // its post of the present number, once it is there
  void meet(const Call& call, const std::byte* data, const std::byte* staged);
  // Where this device reads what that rank has published last.
  const std::byte* published(int rank) const;
  void pull(const Call& call, int from, std::size_t offset, void* dst, std::size_t bytes) const;
  // Adds what all ranks have published: elements `range` of all summands, to `out`.
  void sum(const Call& call, Range range, void* out);
  void pull_slices(const Call& call, std::byte* data);  // own slices are published; the others' come to their places
  std::byte* scratch(std::size_t bytes);
  void reserve_copies(std::size_t bytes);

  std::shared_ptr<PostBoard> board_;
  CudaContext& context_;
  int rank_;
  std::vector<char> direct_;  // whether this device reads that rank's memory
  bool staged_ = false;       // whether a device cannot read this rank's memory
  bool any_staged_ = false;   // whether any rank's is staged
  std::string detours_;
  int summands_ = 1;
  std::int64_t stride_ = 0;            // elements
  std::uint64_t posts_ = 0;            // put so far
  CaptureTurn* turn_ = nullptr;        // while a graph is recorded
  EventHandle reached_[2];             // of this rank's posts, in turn
  std::vector<PostBoard::Post> seen_;  // the latest publications
  struct PinnedCopy {
    PinnedMemory memory;
    std::size_t bytes = 0;
  };
  PinnedCopy copies_[2];  // of what is published, in turn: the others may still read the one before
  DeviceMemory scratch_;
  std::size_t scratch_bytes_ = 0;
  // Outgrown ones, which recorded graphs go on using.
  std::vector<PinnedMemory> retired_copies_;
  std::vector<DeviceMemory> retired_scratch_;
  std::vector<const void*> summed_;  // the summands of a sum while it is enqueued
};

// One handle per context, in rank order; all contexts are CudaContexts.
std::vector<std::unique_ptr<Communicator>> make_p2p_communicators(std::span<Context* const> contexts);

}  // namespace dp::kernels::cuda
