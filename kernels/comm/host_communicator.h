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
#include "kernels/comm/call_board.h"
#include "kernels/comm/host_collectives.h"
#include "kernels/host/host_context.h"

namespace dp::kernels {

class HostCommunicator final : public HostCollectives {
 public:
  // `threads` of OpenMP share this rank's part of a sum.
  HostCommunicator(std::shared_ptr<CallBoard> board, int rank, int threads);

  std::string name() const override { return "host"; }

  void set_summands(int summands, std::int64_t stride) override;
  void trace(TraceRing* ring) override { trace_ = ring; }

 private:
  class Run;  // a call on its way, as a task of the stream
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
  std::vector<void*> pointers_, outs_;  // scratch of the running call: every summand; where results go
};

// One handle per context, in rank order. Error(usage) for a context of another backend or a name other than "host".
std::vector<std::unique_ptr<Communicator>> make_host_communicators(std::string_view name,
                                                                   std::span<Context* const> contexts);

}  // namespace dp::kernels
