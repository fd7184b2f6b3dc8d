// How a thread waits for another without a lock: politely to the core at first, then giving it away.
#pragma once

#include <thread>

namespace dp::kernels {

class Spinner {
 public:
  static constexpr int kPauses = 2000;  // tens of microseconds

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
  void progressed() {
    count_ = 0;
  }

 private:
  int pauses_;
  int count_ = 0;
};

}  // namespace dp::kernels
