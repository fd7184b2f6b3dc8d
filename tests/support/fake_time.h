// Time that passes only when a test says so, for watchdogs, process groups and rates (engine/base/time_source.h).
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>

#include "dp/error.h"
#include "engine/base/test_modes.h"
#include "support/patience.h"

namespace dp::test {

// Make it before the watchdog or process group.
class FakeTime : public engine::TimeSource {
 public:
  FakeTime() { engine::test_modes().time = this; }
  ~FakeTime() override { engine::test_modes().time = &engine::real_time(); }

  // Lets so many seconds pass. Returns when all that follows from them is done, or `over()` is true.
  virtual void pass(double seconds, const std::function<bool()>& over) = 0;
  void pass(double seconds) {
    pass(seconds, [] { return false; });
  }
  // A stall of DP_FAIL takes no time, but lets its time pass.
  void sleep(std::chrono::milliseconds time) override { pass(std::chrono::duration<double>(time).count()); }

 protected:
  static void require(bool holds) {
    if (!holds) throw Error(ErrorCode::timeout, "the thread whose time passes has ended or hangs");
  }
};

// The time of the rates of a training run.
class TimeOfRates final : public FakeTime {
 public:
  using FakeTime::pass;
  void pass(double seconds, const std::function<bool()>& = {}) override { passed_ = passed_ + seconds; }
  TimePoint now() override {
    return TimePoint(std::chrono::duration_cast<TimePoint::duration>(std::chrono::duration<double>(passed_)));
  }

 private:
  std::atomic<double> passed_{0};
};

// Each read of the time adds a second.
class TimeOfLooks final : public FakeTime {
 public:
  void pass(double, const std::function<bool()>&) override {}
  TimePoint now() override { return TimePoint(std::chrono::seconds(++looks_)); }

 private:
  std::atomic<int> looks_{0};
};

// The time of one waiting thread: of a watchdog, or of a rank that is no rank 0.
class TimeOfWaits final : public FakeTime {
 public:
  using FakeTime::pass;
  void pass(double seconds, const std::function<bool()>& over) override {
    const double until = allowed_ += seconds;
    require(becomes([&] { return waits_at_ >= until || over(); }));
  }
  bool wait(std::unique_lock<std::mutex>& lock, std::condition_variable& changed, double seconds,
            const std::function<bool()>& done) override {
    constexpr double kRounding = 1e-6;
    const double until = passed_ + seconds;
    while (!done()) {
      const double allowed = allowed_;
      if (until <= allowed + kRounding) {
        passed_ = until;
        return false;
      }
      waits_at_ = allowed;
      changed.wait_for(lock, std::chrono::milliseconds(1));
    }
    return true;
  }

 private:
  std::atomic<double> allowed_{0}, waits_at_{0};  // waits_at_: the thread has used the time up to here
  double passed_ = 0;
};

// The time of the coordinator of a process group. A rank that waits for it has no time limit.
class TimeOfCoordinator final : public FakeTime {
 public:
  using FakeTime::pass;
  void pass(double seconds, const std::function<bool()>& over) override {
    work_off();
    const double until = allowed_ += seconds;
    require(becomes([&] { return passed_ >= until || over(); }));
    work_off();
  }
  // The same at once, as if the process had been suspended meanwhile.
  void jump(double seconds) {
    work_off();
    jumped_ = jumped_ + seconds;
    work_off();
  }
  // Returns when the coordinator has read what was sent before, and has answered it.
  void work_off() {
    const int before = looks_;
    require(becomes([&] { return looks_ >= before + kReading; }));
  }

  TimePoint now() override {
    ++looks_;
    passed_ = std::min(passed_ + kStep, allowed_.load());
    return TimePoint(std::chrono::duration_cast<TimePoint::duration>(std::chrono::duration<double>(passed_ + jumped_)));
  }
  void poll(pollfd* files, nfds_t count, int) override { ::poll(files, count, 1); }
  bool wait(std::unique_lock<std::mutex>& lock, std::condition_variable& changed, double,
            const std::function<bool()>& done) override {
    changed.wait(lock, done);
    return true;
  }

 private:
  static constexpr double kStep = 0.5;  // less than the time that counts as a suspension
  // Looks at the clock until a new connection is accepted, its message read and answered. One that had begun does not
  // count.
  static constexpr int kReading = 4;
  std::atomic<double> allowed_{0}, passed_{0}, jumped_{0};
  std::atomic<int> looks_{0};
};

}  // namespace dp::test
