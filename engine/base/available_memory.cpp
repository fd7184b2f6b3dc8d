#include "engine/base/available_memory.h"

#include <malloc.h>
#include <unistd.h>

#include "dp/memory.h"
#include "kernels/device/host/memory.h"

namespace dp {

std::uint64_t available_memory() {
  if (const auto room = kernels::host_room()) return room->bytes;
  return static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

void return_freed_memory() {
  ::mallopt(M_MMAP_THRESHOLD, 1 << 20);
  ::mallopt(M_TRIM_THRESHOLD, 1 << 20);
}

}  // namespace dp
