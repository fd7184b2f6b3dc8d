// The communicator "host": ranks that are threads of one process and share memory.
//
// All collectives of one handle go through one stream, in the one order that all ranks have. Calls that shall overlap
// on several streams need a set of handles for each stream; sets are independent. Handles outlive the work enqueued
// with them. The ranks write into each other's memory: what a call was given stays valid until the call has passed on
// every rank or every rank's thread has stopped.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/host/host_context.h"
#include "kernels/host/meeting_board.h"

namespace dp::kernels {

class HostCommunicator final : public Communicator {
 public:
  // `threads` of OpenMP share this rank's part of a sum.
  HostCommunicator(std::shared_ptr<MeetingBoard> board, int rank, int threads);

  int rank() const override { return rank_; }
  int size() const override { return board_->size(); }
  std::string name() const override { return "host"; }

  void bring(int summands, std::int64_t stride) override;
  void trace(TraceRing* ring) override { trace_ = ring; }
  void broadcast(void* data, std::int64_t count, DType type, int root, Stream& stream) override;
  void reduce(void* data, std::int64_t count, DType type, int root, Stream& stream) override;
  void all_reduce(void* data, std::int64_t count, DType type, Stream& stream) override;
  void reduce_scatter(void* data, std::int64_t count, DType type, Stream& stream) override;
  void all_gather(void* data, std::int64_t count, DType type, Stream& stream) override;
  void all_gather_parts(void* whole, std::size_t bytes, Stream& stream) override;
  void gather(const void* part, void* whole, std::span<const std::size_t> bytes, int root, Stream& stream) override;
  void scatter(const void* whole, void* part, std::span<const std::size_t> bytes, int root, Stream& stream) override;

 private:
  class Run;  // a call on its way, as a task of the stream
  void enqueue_typed(Collective kind, void* data, std::int64_t count, DType type, int root, Stream& stream);
  void enqueue_parts(Collective kind, void* whole, void* part, std::span<const std::size_t> bytes, int root,
                     Stream& stream);
  void check_root(int root) const;
  void count_bytes(std::size_t bytes) {
    if (trace_ != nullptr) trace_->count_bytes(static_cast<std::int64_t>(bytes));
  }
  template <typename T>
  void sum(const CollectiveCall& call, std::uint64_t number);

  std::shared_ptr<MeetingBoard> board_;
  int rank_;
  int threads_;
  int summands_ = 1;
  std::int64_t stride_ = 0;  // elements
  std::uint64_t calls_ = 0;
  TraceRing* trace_ = nullptr;
  std::vector<void*> pointers_, outs_;  // scratch of the running call: every summand; where results go
};

// One handle per context, in rank order. Error(usage) for a context of another backend or a name other than "host".
std::vector<std::unique_ptr<Communicator>> make_host_communicators(std::string_view name,
                                                                   std::span<Context* const> contexts);

}  // namespace dp::kernels
