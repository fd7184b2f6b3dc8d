// A stall of an engine in this process that lasts until the watchdog has reported it.
#pragma once

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <string>

#include "engine/base/test_modes.h"
#include "support/temporary_folder.h"

namespace dp::test {

// While it exists, the watchdog calls `end_stall` after it has reported a stall, and the call has a minute to end.
class AfterAbort {
 public:
  explicit AfterAbort(std::function<void()> end_stall) { engine::test_modes().after_abort = std::move(end_stall); }
  ~AfterAbort() { engine::test_modes().after_abort = nullptr; }
  AfterAbort(const AfterAbort&) = delete;
  AfterAbort& operator=(const AfterAbort&) = delete;
};

// `place`: as in DP_FAIL, "backward:dev1:step1". The stall ends when the watchdog has reported it. Any --timeout takes
// some milliseconds: under DP_FAIL_GATE it counts only while a replica stalls there and the others wait.
class HeldStall {
 public:
  explicit HeldStall(const std::string& place)
      : gate_(folder_ / "gate"), after_abort_([this] {
          time_.flies = false;
          std::ofstream(gate_ + ".open");
        }) {
    setenv("DP_FAIL", ("stall:" + place + ":600000ms").c_str(), 1);
    setenv("DP_FAIL_GATE", gate_.c_str(), 1);
    engine::test_modes().time = &time_;
  }
  ~HeldStall() {
    engine::test_modes().time = &engine::real_time();
    unsetenv("DP_FAIL");
    unsetenv("DP_FAIL_GATE");
  }
  HeldStall(const HeldStall&) = delete;
  HeldStall& operator=(const HeldStall&) = delete;

 private:
  struct Time final : engine::TimeSource {
    bool wait(std::unique_lock<std::mutex>& lock, std::condition_variable& changed, double seconds,
              const std::function<bool()>& done) override {
      return TimeSource::wait(lock, changed, flies ? 0.001 : seconds, done);
    }
    std::atomic<bool> flies{true};
  };

  Time time_;
  TemporaryFolder folder_;
  std::string gate_;
  AfterAbort after_abort_;
};

}  // namespace dp::test
