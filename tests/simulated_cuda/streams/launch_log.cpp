#include "simulated_cuda/streams/launch_log.h"

#include <utility>

#include "simulated_cuda/runtime/quiet_lock.h"
#include "simulated_cuda/simulation.h"

namespace dp::simt {
namespace {

struct Log {
  std::mutex mutex;
  std::map<std::string, std::vector<std::string>> launches;
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
}

std::map<std::string, std::vector<std::string>> take_launches() {
  const QuietLock lock(log().mutex);
  return std::exchange(log().launches, {});
}

}  // namespace dp::simt
