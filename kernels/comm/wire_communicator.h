// A communicator between processes. Its own thread executes the calls while the replica computes.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "kernels/comm/host_communicator.h"
#include "kernels/comm/wire.h"
#include "kernels/device/backend.h"
#include "kernels/device/host/host_context.h"

namespace dp::kernels {

// A thread that runs a communicator's calls in order while the replica computes.
// Destroy it before the context that owns `group`. When the context fails, the thread stops using the context's memory
// before the failure is reported.
class CommunicationThread final : private Halted {
 public:
  CommunicationThread(std::unique_ptr<Wire> wire, StreamGroup& group);
  ~CommunicationThread() override;

  // The slot of the next call. Fill it in, then call enqueue(). All calls must use one stream.
  WireJob& next() { return slot(issued_); }
  void enqueue(HostStream& stream);

 private:
  struct Call {
    CommunicationThread* thread;
    std::uint64_t number;
    bool posted = false;
    bool operator()() { return thread->attempt(*this); }
  };
  // A stream queues at most kQueuedTasks calls, hence the slot of an older call is free.
  static constexpr std::uint64_t kSlots = 2 * kQueuedTasks;
  WireJob& slot(std::uint64_t number) { return jobs_[number % kSlots]; }
  bool attempt(Call& call);
  void halt() noexcept override;
  void ring();
  void serve();
  void carry_out(WireJob& job);

  const std::unique_ptr<Wire> wire_;
  StreamGroup& group_;
  Halt halt_;
  std::vector<WireJob> jobs_;
  std::uint64_t issued_ = 0;
  std::atomic<std::uint64_t> posted_{0}, done_{0};  // calls that the stream has reached; calls that are done
  std::atomic<std::uint32_t> bell_{0};              // incremented to wake the thread
  std::atomic<bool> busy_{false}, quit_{false}, failed_{false};
  std::exception_ptr failure_;  // written once, before failed_
  std::thread thread_;
};

// A communicator between processes. A Wire carries its calls, on a communication thread.
//
// All collectives of one handle use one stream, in the same order on all ranks; sets of handles are independent. The
// memory passed to a call must stay valid until the call is done, the context has failed, or the handle is destroyed.
class WireCommunicator final : public HostCollectives {
 public:
  WireCommunicator(std::unique_ptr<Wire> wire, HostContext& context);

  std::string name() const override { return name_; }

 private:
  void enqueue(const CollectiveCall& call, void* data, void* part, std::span<const std::size_t> bytes,
               Stream& stream) override;

  const std::string name_;
  CommunicationThread thread_;
};

// Communicators between processes, for replicas on the host.

// Backend::default_communicator and Backend::join, for contexts of host backends.
CommunicatorChoice default_for(const Rendezvous& rendezvous);
std::unique_ptr<Communicator> join_from_host(std::string_view name, Context& context, Rendezvous& rendezvous);

}  // namespace dp::kernels
