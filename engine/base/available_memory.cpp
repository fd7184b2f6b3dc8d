#include "engine/base/available_memory.h"

#include <unistd.h>

#include "kernels/host/free_memory.h"

namespace dp {

std::uint64_t available_memory() {
  if (const auto room = kernels::host_room()) return room->bytes;
  return static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace dp
