// Ends a call in which nothing moves any more.
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
#include "kernels/backend.h"

namespace dp::engine {

struct WatchdogOptions {
  double seconds = 0;                   // without a move of any replica; above 0
  int replicas = 1;                     // of this process
  kernels::AbortFlag* abort = nullptr;  // raised to end the waits of a call that stands still
  bool others = false;                  // replicas that may be to blame run elsewhere, and can raise the flag, too
  std::function<std::uint64_t(int)> progress_count{};  // differs from before when that replica did something
  std::function<bool(int)> waits{};                    // for another replica
  std::function<std::string(int)> name{};              // "replica 1 (cpu)"
  std::function<std::string(int)> last{};              // what it did last: "backward, layer conv2"
  std::function<std::string()> silent{};           // those elsewhere that do not answer: "rank 1"; asked when all wait
  std::function<void(const Error&)> last_words{};  // tells others, who wait; the user has been told
};

// After `seconds` without a move: when a replica of this process is to blame, or none elsewhere has ended the call meanwhile, raises the
// flag. The call then ends, and verdict() says why it did. When it does not end, because a thread stands in something that
// looks at no flag, the process can not go on: the error is printed, and it ends with status 6, within twice `seconds`.
class Watchdog {
 public:
  explicit Watchdog(WatchdogOptions options);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // Around each call that is watched, by one thread.
  void begin() { calls_.fetch_add(1); }
  void end() { calls_.fetch_add(1); }

  std::optional<Error> verdict() const;

 private:
  using Clock = std::chrono::steady_clock;
  void watch();
  bool sleep(double seconds);  // false: it is over
  bool in_call() const { return calls_.load() % 2 == 1; }
  bool call_ends_within(double seconds);
  void judge();
  std::uint64_t progress_count() const;
  std::string describe(const std::string& silent) const;

  const WatchdogOptions options_;
  std::atomic<std::uint64_t> calls_{0};  // odd: a call is on its way
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  bool over_ = false;
  std::optional<Error> verdict_;
  std::thread thread_;
};

}  // namespace dp::engine
