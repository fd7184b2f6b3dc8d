#include "kernels/host/free_memory.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <limits>
#include <sstream>
#include <string_view>
#include <vector>

namespace dp::kernels {
namespace {

// File names of a cgroup version. `used` counts anonymous and shared memory, which cannot be reclaimed; cached files
// can.
struct Version {
  std::string_view mount, limit;
  std::array<std::string_view, 2> used;  // keys in memory.stat, which include child groups
};
constexpr Version kFirst{"/sys/fs/cgroup/memory", "memory.limit_in_bytes", {"total_rss", "total_shmem"}};
constexpr Version kSecond{"/sys/fs/cgroup", "memory.max", {"anon", "shmem"}};

std::optional<HostRoom> of_machine() {
  std::ifstream file(system_root() + "/proc/meminfo");
  std::string key, unit;
  std::size_t kibibytes = 0;
  while (file >> key >> kibibytes && std::getline(file, unit))
    if (key == "MemAvailable:") return HostRoom{kibibytes * 1024, "MemAvailable of /proc/meminfo"};
  return {};
}

// Empty if the group has no limit or is not mounted.
std::optional<HostRoom> of_group(const Version& version, const std::string& group) {
  const std::string folder = std::string(version.mount) + group + "/", limit = folder + std::string(version.limit);
  std::ifstream maximum(system_root() + limit), statistics(system_root() + folder + "memory.stat");
  std::size_t bytes = 0, used = 0, value = 0;
  if (!(maximum >> bytes)) return {};  // "max": no limit
  for (std::string key; statistics >> key >> value;)
    if (std::find(version.used.begin(), version.used.end(), key) != version.used.end()) used += value;
  return HostRoom{bytes - std::min(bytes, used), limit};
}

void take_less(std::optional<HostRoom>& least, const std::optional<HostRoom>& other) {
  if (other && (!least || other->bytes < least->bytes)) least = other;
}

// Applies the limits of the group and of all its parents. In a container the path may be the host's; the limits are
// then in the files at the mount point.
void add_groups(std::optional<HostRoom>& least, const Version& version, std::string group) {
  while (!group.empty()) {
    if (group.back() != '/') take_less(least, of_group(version, group));
    group.erase(group.rfind('/') == std::string::npos ? 0 : group.rfind('/'));
  }
  take_less(least, of_group(version, ""));
}

bool has_memory(const std::string& controllers) {
  std::istringstream list(controllers);
  for (std::string name; std::getline(list, name, ',');)
    if (name == "memory") return true;
  return false;
}

}  // namespace

std::string& system_root() {
  static std::string root;
  return root;
}

std::optional<HostRoom> host_room() {
  std::optional<HostRoom> least = of_machine();
  std::ifstream groups(system_root() + "/proc/self/cgroup");  // "4:cpu,memory:/a/b" (v1), "0::/a/b" (v2)
  for (std::string number, controllers, path;
       std::getline(groups, number, ':') && std::getline(groups, controllers, ':') && std::getline(groups, path);) {
    if (number == "0" && controllers.empty()) add_groups(least, kSecond, path);
    if (has_memory(controllers)) add_groups(least, kFirst, path);
  }
  return least;
}

std::size_t free_host_memory() {
  const std::optional<HostRoom> room = host_room();
  return room ? std::max<std::size_t>(room->bytes, 1) : 0;
}

}  // namespace dp::kernels
