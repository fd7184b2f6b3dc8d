// One persistent thread per replica, and a call that runs on all of them.
#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "kernels/backend.h"
#include "kernels/host/cores.h"

namespace dp::engine {

class WorkerPool {
 public:
  // With one worker there is no thread: run() calls on the caller's, whose mask comes back at the end.
  explicit WorkerPool(int size);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  int size() const { return size_; }
  kernels::AbortFlag* abort_flag() { return &abort_; }

  // Calls work(rank) on every worker and returns when all are done. The first exception raises the abort flag, which ends the
  // waits of the others. Then throws Error: the failure of the lowest rank as its message, those of the others attached. Throws Aborted
  // when the flag was raised before the call, or by somebody else.
  // `work` is referred to, not copied; nothing is allocated unless something fails.
  template <typename F>
  void run(F&& work) {
    using Work = std::remove_reference_t<F>;
    run_all([](void* self, int rank) { (*static_cast<Work*>(self))(rank); }, &work);
  }
  bool failed() const { return abort_.load(std::memory_order_acquire); }

 private:
  using Call = void (*)(void*, int);
  void run_all(Call call, void* self);
  void serve(int rank);
  void finish_one();
  void wait_for_all();
  void stop();
  void call_guarded(int rank);
  [[noreturn]] void rethrow();

  const int size_;
  std::optional<kernels::ThreadKeeper> caller_;  // with one worker: the caller's thread as it was
  kernels::AbortFlag abort_{false};
  Call call_ = nullptr;
  void* self_ = nullptr;
  std::atomic<std::uint32_t> generation_{0};  // raised to start a call
  std::atomic<int> running_{0};
  std::atomic<bool> quit_{false};
  std::vector<std::exception_ptr> errors_;
  std::vector<std::thread> threads_;
};

}  // namespace dp::engine
