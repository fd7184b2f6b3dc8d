#include "simulated_cuda/driver_lock.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <map>
#include <utility>
#include <vector>

#include "simulated_cuda/runtime/devices.h"
#include "simulated_cuda/runtime/errors.h"
#include "simulated_cuda/runtime/quiet_lock.h"
#include "simulated_cuda/simulation.h"

namespace dp::simt {
namespace {

constexpr std::chrono::microseconds kWhile{200};

struct Driver {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<const void*, std::string> spinning;
  int spinners = 0;
  std::uint64_t calls = 0;
  bool exchanges = false;  // work that waits for another device has been enqueued
  std::vector<std::string> log;
};
Driver& driver() {
  static auto& one = *new Driver;
  return one;
}

}  // namespace

void may_block(const std::string& call) {
  const QuietLock lock(driver().mutex);
  ++driver().calls;
  if (simulation().log_blocking_calls && driver().exchanges)
    driver().log.push_back(call + " on " + device_name(current_device()));
  if (driver().spinners > 0 && simulation().delays)
    driver().changed.wait_for(lock.get(), kWhile, [] { return !driver().spinning.empty(); });
  for (const auto& [key, what] : driver().spinning) report(call + " may wait for " + what + ": possible deadlock");
}

void log_exchange() {
  if (!simulation().log_blocking_calls) return;
  const QuietLock lock(driver().mutex);
  driver().exchanges = true;
}

std::uint64_t blocking_calls() {
  const QuietLock lock(driver().mutex);
  return driver().calls;
}

void set_spinning(const void* key, const std::string& what) {
  const QuietLock lock(driver().mutex);
  if (what.empty())
    driver().spinning.erase(key);
  else
    driver().spinning[key] = what;
  driver().changed.notify_all();
}

void spinners_changed(int by) {
  const QuietLock lock(driver().mutex);
  driver().spinners += by;
}

void forget_driver() {
  const QuietLock lock(driver().mutex);
  driver().spinning.clear();
  driver().exchanges = false;
  driver().log.clear();
}

std::vector<std::string> take_blocking_calls() {
  const QuietLock lock(driver().mutex);
  driver().exchanges = false;
  return std::exchange(driver().log, {});
}

}  // namespace dp::simt
