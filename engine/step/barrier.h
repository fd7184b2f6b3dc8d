// Barrier for the worker threads of one process.
#pragma once

#include <atomic>
#include <cstdint>

#include "kernels/device/backend.h"
#include "kernels/device/host/spin.h"

namespace dp::engine {

class Barrier {
 public:
  // `size`: number of workers. `abort`: set when a worker fails; not owned, may be null.
  Barrier(int size, const kernels::AbortFlag* abort) : size_(size), abort_(abort) {}

  // Waits until all workers have called it. Returns whether `yes` was true in all calls. Throws Aborted once the flag
  // is set.
  bool all(bool yes = true) {
    const std::uint32_t round = round_.load(std::memory_order_acquire);
    if (!yes) refused_.store(true, std::memory_order_relaxed);
    if (came_.fetch_add(1, std::memory_order_acq_rel) + 1 == size_) {
      came_.store(0, std::memory_order_relaxed);
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
  std::atomic<int> came_{0};
  std::atomic<bool> refused_{false};
  bool agreed_ = true;  // result of the last round; the next round cannot end before all workers have read it
  std::atomic<std::uint32_t> round_{0};
};

}  // namespace dp::engine
