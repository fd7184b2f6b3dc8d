// The time of timeouts and rates. Tests replace it (test_modes.h): no verdict depends on how busy the machine is.
#pragma once

#include <poll.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace dp::engine {

class TimeSource {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  TimeSource() = default;
  virtual ~TimeSource() = default;
  TimeSource(const TimeSource&) = delete;
  TimeSource& operator=(const TimeSource&) = delete;

  virtual TimePoint now() { return std::chrono::steady_clock::now(); }
  // Waits until `done()` is true, at most so many seconds. Returns done().
  virtual bool wait(std::unique_lock<std::mutex>& lock, std::condition_variable& changed, double seconds,
                    const std::function<bool()>& done) {
    return changed.wait_for(lock, std::chrono::duration<double>(seconds), done);
  }
  virtual void poll(pollfd* files, nfds_t count, int milliseconds) { ::poll(files, count, milliseconds); }
  virtual void sleep(std::chrono::milliseconds time) { std::this_thread::sleep_for(time); }
};

inline TimeSource& real_time() {
  static TimeSource time;
  return time;
}

}  // namespace dp::engine
