// Streams whose work runs in the thread that enqueues it, at once where it can. What must wait (for another rank, or
// for an event) is queued, and everything after it; each later call on any stream of the context tries the queues
// again.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/host/host_stream.h"

namespace dp::kernels {

class InlineStream;

// The streams of one context. Used by the context's thread only.
class InlineStreams {
 public:
  explicit InlineStreams(StreamGroup& group) : group_(group) {}

  // Runs what is ready at the head of every queue, once around. True if a task was finished.
  bool poll();
  // Returns when every queue is empty.
  void work_off();
  bool idle() const { return queued_ == 0; }
  LabelSeconds take_seconds() { return std::exchange(seconds_, {}); }

 private:
  friend class InlineStream;
  template <typename Done>
  void spin_until(Done done);
  void say_waiting();
  // Stops everything and throws.
  [[noreturn]] void fail(std::exception_ptr failure);

  StreamGroup& group_;
  std::vector<InlineStream*> streams_;
  std::size_t queued_ = 0;  // tasks in all queues
  LabelSeconds seconds_{};
};

class InlineStream final : public HostStream {
 public:
  InlineStream(StreamGroup& group, InlineStreams& siblings);
  ~InlineStream() override;

  void submit(const Task& task) override;
  void synchronize() override;
  void synchronize(Event& event) override;

 private:
  friend class InlineStreams;
  bool advance();            // runs the head of the queue as far as it is ready; true if a task was finished
  bool attempt(Task& task);  // one call of it; failures are the context's
  void tag(Task& task) const {
    task.label = label_;
    task.detail = detail_;
  }
  void drop_queue() noexcept;
  void note(const Task& task, std::int64_t end);  // in the trace
  std::uint64_t done() const { return progress_.done.load(std::memory_order_relaxed); }
  void count_done() { progress_.done.store(done() + 1, std::memory_order_release); }
  std::size_t queued() const { return static_cast<std::size_t>(issued_ - done()); }
  Task& slot(std::uint64_t number) { return queue_[number % kQueuedTasks]; }

  InlineStreams& siblings_;
  std::unique_ptr<Task[]> queue_;  // a ring: task number n, from done() to issued_, lies in slot(n)
};

}  // namespace dp::kernels
