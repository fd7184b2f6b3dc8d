// How a thread waits for another without a lock: politely to the core at first, then giving it away.
#pragma once

#include <thread>

namespace dp::kernels {

class Spinner {
 public:
  // A few microseconds. Waiting longer before the first yield gains nothing on a free core, where a yield returns at once, and
  // on a shared one keeps the very thread that is waited for from running.
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
