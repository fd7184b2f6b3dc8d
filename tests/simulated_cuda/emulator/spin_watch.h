// Detects kernels that never end: threads or blocks that poll memory for each other, without a scheduler that
// guarantees progress.
#pragma once

#include <atomic>

namespace dp::simt {

// Watches a kernel on the calling thread while this object exists. Progress means that a thread returns, passes a
// barrier or finishes a warp operation. After simulation().spin_seconds of CPU time without progress the process ends
// with a message and exit status 99.
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
