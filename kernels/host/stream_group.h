// State shared by the streams of one context: the progress of each, the abort flag, and the first failure.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <vector>

#include "kernels/backend.h"

namespace dp::kernels {

// The number of finished tasks of a stream; tasks finish in order. Outlives the stream, because events refer to it.
struct Progress {
  alignas(64) std::atomic<std::uint64_t> done{0};
  bool reached(std::uint64_t ticket) const { return done.load(std::memory_order_acquire) >= ticket; }
};

// A helper that accesses a context's memory outside its streams, e.g. a CommunicationThread.
class Halted {
 public:
  virtual ~Halted() = default;
  virtual void halt() noexcept = 0;  // returns when the helper has stopped for good
};

class StreamGroup {
 public:
  explicit StreamGroup(AbortFlag* abort) : abort_(abort) {}
  StreamGroup(const StreamGroup&) = delete;
  StreamGroup& operator=(const StreamGroup&) = delete;

  Progress& add_stream() { return progress_.emplace_back(); }
  // Registers a helper. The first failure halts it before failed() becomes true.
  void add(Halted& helper);
  void remove(Halted& helper);

  const AbortFlag* abort_flag() const { return abort_; }

  // Written by the streams' thread; stream_progress() reads it from any thread.
  void say_waiting(std::size_t label, std::uint64_t detail) {
    waiting_.store(detail << 8 | label << 1 | 1, std::memory_order_relaxed);
  }
  void say_working() { waiting_.store(0, std::memory_order_relaxed); }
  StreamProgress stream_progress() const {
    const std::uint64_t waiting = waiting_.load(std::memory_order_relaxed);
    StreamProgress now{0, (waiting & 1) != 0, (waiting & 0xff) >> 1, waiting >> 8};
    for (const Progress& progress : progress_) now.count += progress.done.load(std::memory_order_relaxed);
    return now;
  }

  bool aborted() const { return abort_ != nullptr && abort_->load(std::memory_order_acquire); }

  // After a failure no stream of the context runs another task, and every call on a stream rethrows the first failure.
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  void fail(std::exception_ptr failure) noexcept;
  void rethrow_if_failed() const {
    if (failed()) std::rethrow_exception(failure_);
  }

 private:
  AbortFlag* abort_;
  std::deque<Progress> progress_;
  std::atomic<std::uint64_t> waiting_{0};  // detail << 8 | label << 1 | 1; 0: not waiting
  std::atomic<bool> failed_{false};
  std::mutex mutex_;  // for fail(), add() and remove()
  std::vector<Halted*> helpers_;
  std::exception_ptr failure_;  // written once, before failed_
};

}  // namespace dp::kernels
