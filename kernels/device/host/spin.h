// Lock-free waiting for another thread: first with pause instructions, then with yields.
#pragma once

#include <thread>

namespace dp::kernels {

class Spinner {
 public:
  // A few microseconds. A longer spin gains nothing on a free core, where a yield returns at once. On a shared core it
  // delays the thread that this thread waits for.
  static constexpr int kPauses = 100;

  explicit Spinner(int pauses = kPauses) : pauses_(pauses) {}
  void wait() {
    if (count_ >= pauses_) {
      std::this_thread::yield();
      return;
    }
    ++count_;
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
  void progressed() { count_ = 0; }

 private:
  int pauses_;
  int count_ = 0;
};

}  // namespace dp::kernels
