#include "kernels/host/free_memory.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <string_view>

#include "kernels/host/control_groups.h"

namespace dp::kernels {
namespace {

// File names of a cgroup version. `used` counts anonymous and shared memory, which cannot be reclaimed; cached files
// can.
struct Version {
  std::string_view limit;
  std::array<std::string_view, 2> used;  // keys in memory.stat, which include child groups
};
constexpr Version kFirst{"memory.limit_in_bytes", {"total_rss", "total_shmem"}};
constexpr Version kSecond{"memory.max", {"anon", "shmem"}};

std::optional<HostRoom> of_machine() {
  std::ifstream file(system_root() + "/proc/meminfo");
  std::string key, unit;
  std::size_t kibibytes = 0;
  while (file >> key >> kibibytes && std::getline(file, unit))
    if (key == "MemAvailable:") return HostRoom{kibibytes * 1024, "MemAvailable of /proc/meminfo"};
  return {};
}

// Empty if the group has no limit or is not mounted.
std::optional<HostRoom> of_group(const ControlGroup& group) {
  const Version& version = group.version == 1 ? kFirst : kSecond;
  const std::string limit = group.folder + "/" + std::string(version.limit);
  std::ifstream maximum(system_root() + limit), statistics(system_root() + group.folder + "/memory.stat");
  std::size_t bytes = 0, used = 0, value = 0;
  if (!(maximum >> bytes)) return {};  // "max": no limit
  for (std::string key; statistics >> key >> value;)
    if (std::find(version.used.begin(), version.used.end(), key) != version.used.end()) used += value;
  return HostRoom{bytes - std::min(bytes, used), limit};
}

}  // namespace

std::optional<HostRoom> host_room() {
  std::optional<HostRoom> least = of_machine();
  for (const ControlGroup& group : control_groups("memory"))
    if (const auto room = of_group(group); room && (!least || room->bytes < least->bytes)) least = room;
  return least;
}

std::size_t free_host_memory() {
  const std::optional<HostRoom> room = host_room();
  return room ? std::max<std::size_t>(room->bytes, 1) : 0;
}

}  // namespace dp::kernels
