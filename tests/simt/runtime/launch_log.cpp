#include "simt/runtime/launch_log.h"

#include <utility>

#include "simt/runtime/devices.h"
#include "simt/runtime/quiet_lock.h"
#include "simt/simulation.h"

namespace dp::simt {
namespace {

struct Log {
  std::mutex mutex;
  std::map<std::string, std::vector<std::string>> launches;
  bool exchanges = false;  // work that waits for another device has been enqueued
  std::vector<std::string> blocking_calls;
};
Log& log() {
  static auto& one = *new Log;
  return one;
}

std::string extent(const dim3& size) {
  return std::to_string(size.x) + "x" + std::to_string(size.y) + "x" + std::to_string(size.z);
}

std::string text_of(const Work& work) {
  std::string text = describe(work);
  if (const auto* kernel = std::get_if<KernelWork>(&work))
    text += " " + extent(kernel->grid.grid) + " of " + extent(kernel->grid.block) + ", " +
            std::to_string(kernel->grid.shared_bytes) + " bytes";
  return text;
}

}  // namespace

void log_launch(const Stream& stream, const Work& work) {
  if (!simulation().log_launches) return;
  const QuietLock lock(log().mutex);
  log().launches[stream.name()].push_back(text_of(work));
}

void forget_launches() {
  const QuietLock lock(log().mutex);
  log().launches.clear();
  log().blocking_calls.clear();
  log().exchanges = false;
}

void log_exchange() {
  if (!simulation().log_blocking_calls) return;
  const QuietLock lock(log().mutex);
  log().exchanges = true;
}

void log_blocking_call(const std::string& call) {
  if (!simulation().log_blocking_calls) return;
  const QuietLock lock(log().mutex);
  if (log().exchanges) log().blocking_calls.push_back(call + " on " + device_name(current_device()));
}

std::vector<std::string> take_blocking_calls() {
  const QuietLock lock(log().mutex);
  log().exchanges = false;
  return std::exchange(log().blocking_calls, {});
}

std::map<std::string, std::vector<std::string>> take_launches() {
  const QuietLock lock(log().mutex);
  return std::exchange(log().launches, {});
}

}  // namespace dp::simt
