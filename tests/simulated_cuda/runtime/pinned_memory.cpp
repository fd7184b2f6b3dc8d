#include "simulated_cuda/runtime/pinned_memory.h"

#include <cstdlib>
#include <map>
#include <mutex>

#include "simulated_cuda/emulator/detector.h"
#include "simulated_cuda/runtime/quiet_lock.h"

namespace dp::simt {
namespace {

struct Pinned {
  std::mutex mutex;
  std::map<char*, std::size_t> blocks;
};
Pinned& pinned() {
  static auto& memory = *new Pinned;
  return memory;
}

void give_back(char* begin, std::size_t bytes) {
  if (detector != nullptr) detector->freed(begin, bytes);
  std::free(begin);
}

}  // namespace

void* allocate_pinned(std::size_t bytes) {
  constexpr std::size_t kAlignment = 256;
  void* const memory = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  if (memory == nullptr) return nullptr;
  const QuietLock lock(pinned().mutex);
  pinned().blocks[static_cast<char*>(memory)] = bytes;
  if (detector != nullptr) detector->allocated(memory, bytes);
  return memory;
}

bool release_pinned(void* begin) {
  std::size_t bytes;
  {
    const QuietLock lock(pinned().mutex);
    const auto at = pinned().blocks.find(static_cast<char*>(begin));
    if (at == pinned().blocks.end()) return false;
    bytes = at->second;
    pinned().blocks.erase(at);
  }
  give_back(static_cast<char*>(begin), bytes);  // unlocked: lets the thread sanitizer see other users
  return true;
}

void release_all_pinned() {
  const QuietLock lock(pinned().mutex);
  for (const auto& [begin, bytes] : pinned().blocks) give_back(begin, bytes);
  pinned().blocks.clear();
}

bool is_pinned(const void* address) {
  const QuietLock lock(pinned().mutex);
  const auto above = pinned().blocks.upper_bound(static_cast<char*>(const_cast<void*>(address)));
  if (above == pinned().blocks.begin()) return false;
  const auto& [begin, bytes] = *std::prev(above);
  return address <= begin + bytes;
}

std::size_t pinned_count() {
  const QuietLock lock(pinned().mutex);
  return pinned().blocks.size();
}

}  // namespace dp::simt
