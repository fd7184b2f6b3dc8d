// The control groups (cgroups, v1 and v2) of this process.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace dp::kernels {

struct ControlGroup {
  std::string folder;  // "/sys/fs/cgroup/a/b", without a trailing slash
  int version = 2;
};

// The groups of this process that may limit `controller` ("memory", "cpu"): its own, all parents up to the mount point.
// In a container the path of the group may be the host's; the limits are then in the files at the mount point.
std::vector<ControlGroup> control_groups(std::string_view controller);

// The prefix of /proc and /sys here and in free_memory.h. Empty except in tests.
std::string& system_root();

}  // namespace dp::kernels
