// Graph capture is not thread-safe. This lock serialises the threads that record one graph. A thread releases the lock
// while it waits for another thread.
#pragma once

#include <atomic>
#include <mutex>
#include <stdexcept>

namespace dp::kernels {

class CaptureTurn {
 public:
  // Thrown by a wait for another thread after give_up().
  struct GivenUp : std::runtime_error {
    GivenUp() : std::runtime_error("another replica's graph capture failed") {}
  };

  void take() { mutex_.lock(); }
  void pass() { mutex_.unlock(); }

  void give_up() { given_up_.store(true, std::memory_order_relaxed); }
  bool given_up() const { return given_up_.load(std::memory_order_relaxed); }
  void begin_anew() { given_up_.store(false, std::memory_order_relaxed); }  // call it while no thread records

  // Releases the lock for the lifetime of this object.
  class Passed {
   public:
    explicit Passed(CaptureTurn& turn) : turn_(turn) { turn_.pass(); }
    ~Passed() { turn_.take(); }
    Passed(const Passed&) = delete;
    Passed& operator=(const Passed&) = delete;

   private:
    CaptureTurn& turn_;
  };

 private:
  std::mutex mutex_;
  std::atomic<bool> given_up_{false};
};

}  // namespace dp::kernels
