// One persistent thread per worker; none if there is only one worker.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "kernels/device/backend.h"
#include "kernels/device/host/cores.h"
#include "kernels/device/host/spin.h"

namespace dp::engine {

class WorkerPool {
 public:
  // With one worker no thread is started: run() calls work on the caller's thread. The destructor restores that
  // thread's affinity mask.
  explicit WorkerPool(int size);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  int size() const { return size_; }
  kernels::AbortFlag* abort_flag() { return &abort_; }

  // Calls work(number of the worker) on every worker and returns when all are done. The first exception sets the abort
  // flag, which ends the waits of all other workers. run() then throws Error with the message of the failed worker that
  // has the lowest number; the other messages are attached. Throws Aborted if the flag was set before the call, or if
  // no worker caused the failure. `work` is not copied. Nothing is allocated unless a worker fails.
  template <typename F>
  void run(F&& work) {
    using Callable = std::remove_reference_t<F>;
    run_all([](void* self, int number) { (*static_cast<Callable*>(self))(number); }, &work);
  }
  // How many threads have no work.
  int finished() const { return static_cast<int>(threads_.size()) - running_.load(); }
  bool failed() const { return abort_.load(std::memory_order_acquire); }

 private:
  using Call = void (*)(void*, int);
  void run_all(Call call, void* self);
  void serve(int number);
  void finish_one();
  void wait_for_all();
  void stop();
  void call_guarded(int number);
  [[noreturn]] void rethrow();

  const int size_;
  std::optional<kernels::ThreadKeeper> caller_;  // with one worker: saved settings of the caller's thread
  kernels::AbortFlag abort_{false};
  Call call_ = nullptr;
  void* self_ = nullptr;
  std::atomic<std::uint32_t> generation_{0};  // incremented to start a call
  std::atomic<int> running_{0};
  std::atomic<bool> quit_{false};
  std::vector<std::exception_ptr> errors_;
  std::vector<std::thread> threads_;
};

// Lets the worker threads of one process wait for each other.
class Barrier {
 public:
  // `size`: number of workers. `abort`: set when a worker fails; not owned, may be null.
  Barrier(int size, const kernels::AbortFlag* abort) : size_(size), abort_(abort) {}

  // Waits until all workers have called it. Returns whether `yes` was true in all calls. Throws Aborted once the flag
  // is set.
  bool arrive_and_wait(bool yes = true) {
    const std::uint32_t round = round_.load(std::memory_order_acquire);
    if (!yes) refused_.store(true, std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size_) {
      arrived_.store(0, std::memory_order_relaxed);
      agreed_ = !refused_.exchange(false, std::memory_order_relaxed);
      round_.store(round + 1, std::memory_order_release);
      return agreed_;
    }
    kernels::Spinner spinner;
    while (round_.load(std::memory_order_acquire) == round) {
      if (abort_ != nullptr && abort_->load(std::memory_order_relaxed)) throw kernels::Aborted();
      spinner.wait();
    }
    return agreed_;
  }

 private:
  const int size_;
  const kernels::AbortFlag* const abort_;
  std::atomic<int> arrived_{0};
  std::atomic<bool> refused_{false};
  bool agreed_ = true;  // result of the last round; the next round cannot end before all workers have read it
  std::atomic<std::uint32_t> round_{0};
};

}  // namespace dp::engine
