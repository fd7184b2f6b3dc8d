// The host memory that this process can still allocate.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

namespace dp::kernels {

struct HostRoom {
  std::size_t bytes = 0;
  std::string limit;  // source of the limit: /proc/meminfo or a cgroup file
};

// The smallest of the system's available memory and the room in this process's cgroups (v1 and v2) and their parents.
// Cached files count as free. Empty if unknown.
std::optional<HostRoom> host_room();
// The bytes of host_room(), at least 1; 0 if unknown.
std::size_t free_host_memory();

}  // namespace dp::kernels
