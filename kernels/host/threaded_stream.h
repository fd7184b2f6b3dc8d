// Streams for tests: each runs its tasks on a thread of its own and starts some of them late, so that work that lacks
// an event wait comes out wrong, or the thread sanitizer sees it. The two threads meet only in atomics that the
// semantics of streams imply: enqueueing goes before the task, a task before its event and before synchronize().
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>

#include "kernels/host/host_stream.h"

namespace dp::kernels {

class ThreadedStream final : public HostStream {
 public:
  // Delays are drawn from `seed`; `threads` is what an op may use.
  ThreadedStream(StreamGroup& group, std::uint64_t seed, int threads);
  ~ThreadedStream() override;

  void submit(const Task& task) override;
  void synchronize() override;
  void synchronize(Event& event) override;

 private:
  void run(std::uint64_t seed, int threads);
  void finish(Task& task);  // returns when it is done, or when nothing of this context will run any more

  std::unique_ptr<Task[]> queue_;            // a ring: task number n lies in slot n % kQueuedTasks
  std::uint64_t seen_done_ = 0;              // the owner's lower bound of the tasks done
  std::atomic<std::uint64_t> published_{0};  // tasks the thread may take
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace dp::kernels
