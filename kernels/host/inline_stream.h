// Streams that run work in the thread that enqueues it, immediately if possible. A task that must wait for another rank
// or an event is queued, with all later tasks of its stream. Each later call on any stream of the context retries the
// queues (docs/decisions/0001).
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

  // Runs the ready tasks at the head of every queue once. Returns true if a task finished.
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
  // Fails the context, drops all queues and throws.
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
  bool advance();            // runs ready tasks from the head of the queue; true if a task finished
  bool attempt(Task& task);  // calls the task once; an exception fails the context
  void tag(Task& task) const {
    task.label = label_;
    task.detail = detail_;
  }
  void drop_queue() noexcept;
  void note(const Task& task, std::int64_t end);  // adds a span to the trace
  std::uint64_t done() const { return progress_.done.load(std::memory_order_relaxed); }
  void count_done() { progress_.done.store(done() + 1, std::memory_order_release); }
  std::size_t queued() const { return static_cast<std::size_t>(issued_ - done()); }
  Task& slot(std::uint64_t number) { return queue_[number % kQueuedTasks]; }

  InlineStreams& siblings_;
  std::unique_ptr<Task[]> queue_;  // ring buffer: task n, from done() to issued_ - 1, is in slot(n)
};

}  // namespace dp::kernels
