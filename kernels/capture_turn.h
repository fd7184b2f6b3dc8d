// Several threads record one graph: one at a time, for graphs are not made for more. A thread has the turn but while it waits for another.
#pragma once

#include <atomic>
#include <mutex>
#include <stdexcept>

namespace dp::kernels {

class CaptureTurn {
 public:
  // What a wait for another thread ends by once the recording has been given up.
  struct GivenUp : std::runtime_error {
    GivenUp() : std::runtime_error("another replica's recording failed") {}
  };

  void take() { mutex_.lock(); }
  void pass() { mutex_.unlock(); }

  void give_up() { given_up_.store(true, std::memory_order_relaxed); }
  bool given_up() const { return given_up_.load(std::memory_order_relaxed); }
  void begin_anew() { given_up_.store(false, std::memory_order_relaxed); }  // while no thread records

  // Passed on while this lives.
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
