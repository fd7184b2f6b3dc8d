// Streams for tests. Each stream runs its tasks on its own thread and delays some of them, so that a missing event wait
// causes a wrong result or a ThreadSanitizer report. The two threads synchronise only through atomics that the
// semantics of streams imply: enqueueing happens before the task, a task before its event and before synchronize().
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>

#include "kernels/host/host_stream.h"

namespace dp::kernels {

class ThreadedStream final : public HostStream {
 public:
  // `seed` determines the delays. `threads` is the number of threads that an op may use.
  ThreadedStream(StreamGroup& group, std::uint64_t seed, int threads);
  ~ThreadedStream() override;

  void submit(const Task& task) override;
  void synchronize() override;
  void synchronize(Event& event) override;

 private:
  void run(std::uint64_t seed, int threads);
  void finish(Task& task);  // returns when the task is done or the context has failed

  std::unique_ptr<Task[]> queue_;            // ring buffer: task n is in slot n % kQueuedTasks
  std::uint64_t seen_done_ = 0;              // the owner's lower bound of the finished tasks
  std::atomic<std::uint64_t> published_{0};  // number of tasks that the thread may run
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace dp::kernels
