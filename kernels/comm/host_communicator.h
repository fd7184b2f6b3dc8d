// The communicator "host". Its ranks are threads of one process, or processes of one host that share memory (join.h).
//
// All collectives of one handle use one stream, in the same order on all ranks. To overlap calls on several streams,
// make one set of handles per stream; sets are independent. A handle must outlive the work enqueued with it. Ranks
// write into each other's memory: the memory passed to a call must stay valid until the call is done on every rank, or
// until every rank's thread has stopped.
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
