#include "simulated_cuda/streams/functions.h"

#include <algorithm>
#include <unordered_map>

#include "simulated_cuda/emulator/launch_bounds.h"
#include "simulated_cuda/runtime/quiet_lock.h"

namespace dp::simt {
namespace {

constexpr std::size_t kUnasked = 48 * 1024;

struct Functions {
  std::mutex mutex;
  std::unordered_map<const void*, FunctionLimits> known;
};
Functions& functions() {
  static auto& all = *new Functions;
  return all;
}

// Counts the nops before the function. One of them may be padding; then the result is 32 threads too large.
int launch_bounds_of(const void* function) {
  if (!kKnowsLaunchBounds) return 0;
  constexpr unsigned char kNop = 0x90;
  const auto* const code = static_cast<const unsigned char*>(function);
  int room = 0;
  while (room < 1024 / kThreadsPerByte && code[-room - 1] == kNop) ++room;
  return room > 1 ? room * kThreadsPerByte : 0;
}

// The caller holds the lock.
FunctionLimits& entry(const void* function) {
  const auto [at, fresh] = functions().known.try_emplace(function);
  if (fresh) at->second.most_threads = launch_bounds_of(function);
  return at->second;
}

}  // namespace

std::size_t FunctionLimits::dynamic_limit(int device) const {
  if (allowed[device] >= 0) return static_cast<std::size_t>(allowed[device]);
  return kUnasked - std::min(kUnasked, static_bytes);
}

std::size_t FunctionLimits::shared_limit(int device) const {
  return allowed[device] >= 0 ? simulation().most_shared_memory() : kUnasked;
}

FunctionLimits limits_of(const void* function) {
  const QuietLock lock(functions().mutex);
  return entry(function);
}

void allow_dynamic(const void* function, int device, int bytes) {
  const QuietLock lock(functions().mutex);
  entry(function).allowed[device] = bytes;
}

void note_static(const void* function, std::size_t bytes) {
  const QuietLock lock(functions().mutex);
  std::size_t& known = entry(function).static_bytes;
  known = std::max(known, bytes);
}

}  // namespace dp::simt
