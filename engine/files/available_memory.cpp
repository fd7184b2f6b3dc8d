#include "engine/files/available_memory.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

namespace dp {
namespace {

constexpr std::uint64_t kUnlimited = std::numeric_limits<std::uint64_t>::max();

std::uint64_t of_machine() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  for (std::uint64_t kibibytes = 0; file >> key >> kibibytes; file.ignore(256, '\n'))
    if (key == "MemAvailable:") return kibibytes * 1024;
  return static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

// Cached file contents count as used in memory.current, yet are given up on demand: only anonymous memory is in the way.
std::uint64_t of_container() {
  std::uint64_t limit = 0, used = 0;
  std::string key;
  std::ifstream maximum("/sys/fs/cgroup/memory.max"), now("/sys/fs/cgroup/memory.stat");
  if (!(maximum >> limit)) return kUnlimited;  // no such limit, or "max"
  while (now >> key >> used)
    if (key == "anon") return limit > used ? limit - used : 0;
  return kUnlimited;
}

}  // namespace

std::uint64_t available_memory() { return std::min(of_machine(), of_container()); }

}  // namespace dp
