// Finds kernels that never end: threads or blocks that wait for each other by reading memory, which no scheduler promises to serve.
#pragma once

#include <atomic>

namespace dp::simt {

// While this lives a kernel runs on the calling thread. One that uses simulation().spin_seconds of processor time in which none
// of its threads returns, passes a barrier or finishes a warp operation ends the process: a line, and exit status 99.
class SpinWatch {
 public:
  SpinWatch(const char* kernel, int device);
  ~SpinWatch();
  SpinWatch(const SpinWatch&) = delete;
  SpinWatch& operator=(const SpinWatch&) = delete;
};

inline constinit thread_local std::atomic<unsigned> progress_of_kernel{0};
inline void kernel_progress() {
  progress_of_kernel.store(progress_of_kernel.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

}  // namespace dp::simt
