// Ends a call that makes no progress.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "dp/error.h"
#include "engine/base/test_modes.h"
#include "kernels/device/backend.h"

namespace dp::engine {

inline constexpr double kAfterStop = 15;  // less than what schedulers wait between SIGTERM and SIGKILL, often 30 s

struct WatchdogOptions {
  double seconds = 0;                      // without progress of any replica; 0: no limit until `stop`
  const std::atomic<int>* stop = nullptr;  // non-zero: from then on at most `after_stop` seconds without progress
  double after_stop = kAfterStop;
  int replicas = 1;                     // of this process
  kernels::AbortFlag* abort = nullptr;  // raised to end the waits of a stalled call
  bool others = false;                  // other processes have replicas, which may be the cause and may raise the flag
  std::function<std::uint64_t(int)> progress_count{};  // changes when that replica makes progress
  std::function<bool(int)> waits{};                    // whether that replica waits for another one
  std::function<std::string(int)> name{};              // "replica 1 (cpu)"
  std::function<std::string(int)> last{};              // its last phase and layer: "backward, layer conv2"
  std::function<std::string()> silent{};           // ranks that do not respond: "rank 1"; called if all replicas wait
  std::function<bool()> counts{};                  // whether time without progress counts now; empty: always
  std::function<void(const Error&)> last_words{};  // reports the error to other processes, after it was printed
};

// After `seconds` without progress, raises the flag if a replica of this process is the cause. Otherwise first gives
// other processes time to end the call. The call then ends, and verdict() gives the cause. If it does not end, because
// a thread is blocked in code that does not check the flag, the error is printed and the process exits with status 6,
// or after a signal with 128 + its number. This happens within twice `seconds`, or twice `after_stop` after a stop.
class Watchdog {
 public:
  explicit Watchdog(WatchdogOptions options);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // Call around each watched call, from one thread.
  void begin() { calls_.fetch_add(1); }
  void end() { calls_.fetch_add(1); }

  std::optional<Error> verdict() const;

 private:
  void watch();
  bool sleep(double seconds);  // false: the watchdog is being destroyed
  bool in_call() const { return calls_.load() % 2 == 1; }
  bool call_ends_within(double seconds);
  int stop() const { return options_.stop == nullptr ? 0 : options_.stop->load(); }
  void judge(double seconds);  // `seconds` without progress
  std::uint64_t progress_count() const;
  std::string describe(double seconds, const std::string& silent) const;

  const WatchdogOptions options_;
  TimeSource& time_ = *test_modes().time;
  std::atomic<std::uint64_t> calls_{0};  // odd: a call is running
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  bool over_ = false;
  std::optional<Error> verdict_;
  std::thread thread_;
};

}  // namespace dp::engine
