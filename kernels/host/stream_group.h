// What the streams of one context share: how far each has come, the abort flag, and the first failure.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <vector>

#include "kernels/backend.h"

namespace dp::kernels {

// Tasks of a stream that are done, in order. Outlives the stream, so that an event may.
struct Progress {
  alignas(64) std::atomic<std::uint64_t> done{0};
  bool reached(std::uint64_t ticket) const { return done.load(std::memory_order_acquire) >= ticket; }
};

// Works on a context's memory beside its streams.
class Halted {
 public:
  virtual ~Halted() = default;
  virtual void halt() noexcept = 0;  // returns when it has stopped, for good
};

class StreamGroup {
 public:
  explicit StreamGroup(AbortFlag* abort) : abort_(abort) {}
  StreamGroup(const StreamGroup&) = delete;
  StreamGroup& operator=(const StreamGroup&) = delete;

  Progress& add_stream() { return progress_.emplace_back(); }
  // Halted at the first failure, before the context says that it has failed.
  void add(Halted& helper);
  void remove(Halted& helper);

  const AbortFlag* abort_flag() const { return abort_; }

  // Said by the streams' thread, heard by any.
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

  // After a failure the context is dead: no stream of it runs another task, and every call on one rethrows the first
  // failure.
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  void fail(std::exception_ptr failure) noexcept;
  void rethrow_if_failed() const {
    if (failed()) std::rethrow_exception(failure_);
  }

 private:
  AbortFlag* abort_;
  std::deque<Progress> progress_;
  std::atomic<std::uint64_t> waiting_{0};  // detail, label and a 1 for the lowest bit; 0: not waiting
  std::atomic<bool> failed_{false};
  std::mutex mutex_;  // for the first of several failures
  std::vector<Halted*> helpers_;
  std::exception_ptr failure_;  // written once, before failed_
};

}  // namespace dp::kernels
