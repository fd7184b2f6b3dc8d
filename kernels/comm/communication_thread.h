// A thread that carries out a communicator's calls in their order, so that they go on while the replica computes.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <thread>
#include <vector>

#include "kernels/comm/wire.h"
#include "kernels/host/host_stream.h"
#include "kernels/host/stream_group.h"

namespace dp::kernels {

// Destroy it before the context whose `group` this is. When the context fails, the thread has left the context's memory
// alone before anybody is told.
class CommunicationThread final : private Halted {
 public:
  CommunicationThread(std::unique_ptr<Wire> wire, StreamGroup& group);
  ~CommunicationThread() override;

  // Where the next call is described, before enqueue() puts it into the stream. All calls go through one stream.
  WireJob& next() { return slot(issued_); }
  void enqueue(HostStream& stream);
  void trace(TraceRing* ring) { trace_ = ring; }  // of that stream

 private:
  struct Call {
    CommunicationThread* thread;
    std::uint64_t number;
    bool posted = false;
    bool operator()() { return thread->attempt(*this); }
  };
  // A stream queues kQueuedTasks calls at most, so the slot of an older one is free.
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
  TraceRing* trace_ = nullptr;
  std::atomic<std::uint64_t> posted_{0}, done_{0};  // calls that their stream has come to; that are done
  std::atomic<std::uint32_t> bell_{0};              // rung when there is something new for the thread
  std::atomic<bool> busy_{false}, quit_{false}, failed_{false};
  std::exception_ptr failure_;  // written once, before failed_
  std::thread thread_;
};

}  // namespace dp::kernels
