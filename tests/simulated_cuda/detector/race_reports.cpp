// Messages of the race detector.
#include <cstdio>

#include "simulated_cuda/detector/race_detector.h"
#include "simulated_cuda/runtime/devices.h"
#include "simulated_cuda/runtime/errors.h"
#include "simulated_cuda/runtime/source_line.h"

namespace dp::simt {
namespace {

const char* noun(Access kind) {
  switch (kind) {
    case Access::read: return "read";
    case Access::write: return "write";
    case Access::atomic: break;
  }
  return "atomic update";
}

std::string describe(const Accessed& access) {
  return std::string(noun(access.kind)) + " by block " + std::to_string(access.block) + " thread " +
         std::to_string(access.thread) + source_line(access.code);
}

std::string text(const void* address) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%p", address);
  return buffer;
}

}  // namespace

void RaceDetector::end() {
  const std::string operation = clocks_.what(operation_);
  for (const Race& race : races_)
    report("race in " + operation + " on " + race.place + ": " + describe(race.earlier) + " and " +
           describe(race.later) + ", and nothing orders them");
  for (const MissingWait& missing : missing_)
    report("missing wait: " + clocks_.what(missing.earlier) +
           (missing.earlier_kind == Access::read ? " read " : " wrote ") + text(missing.address) + ", " + operation +
           (missing.later_kind == Access::read ? " reads it" : " writes it") + ", and no event orders them");
  races_.clear();
  missing_.clear();
  clocks_.finished(operation_);
}

// Runs on a fiber, so it does not allocate.
void RaceDetector::refuse(Block& block, const void* address, unsigned bytes, Access kind, const void* code) {
  char message[320];
  const int owner = owner_of(address);
  int used = std::snprintf(message, sizeof message, "%s of %u bytes ", noun(kind), bytes);
  const auto add = [&](const char* format, auto... values) {
    used += std::snprintf(message + used, sizeof message - used, format, values...);
  };
  if (block.shared().holds(address)) {
    add("outside shared memory: byte %zu of %s", block.shared().offset_in_array(address),
        block.shared().name_of(address));
    block.fail_address(message, code);
  }
  if (owner < 0) {
    add("that end%s behind pinned memory, at %p", kind == Access::read ? "s" : "", address);
    block.fail_address(message, code);
  }
  const Allocation near = device(owner).memory.nearest(address);
  const std::size_t at = near.begin == nullptr ? 0 : static_cast<const char*>(address) - near.begin;
  if (near.begin != nullptr && at + bytes <= near.bytes) {
    add("in memory of cuda:%d, which is no peer", owner);
  } else if (near.begin != nullptr) {
    add("outside any allocation of cuda:%d: at byte %zu of one of %zu", owner, at, near.bytes);
  } else {
    add("outside any allocation of cuda:%d", owner);
  }
  block.fail_address(message, code);
}

void RaceDetector::forget() {
  global_.forget_all();
  clocks_.forget_operations();
}

}  // namespace dp::simt
