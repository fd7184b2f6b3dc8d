// The host memory that this process can still allocate.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

namespace dp::kernels {

struct HostRoom {
  std::size_t bytes = 0;
  std::string limit;  // the file that says so: /proc/meminfo, or a control group's
};

// The least of what the system has available and what this process's control groups (v1 and v2) and those above them leave; cached files
// count as free. Nothing: unknown.
std::optional<HostRoom> host_room();
// The same in bytes; 0 when unknown.
std::size_t free_host_memory();

// The prefix of /proc and /sys in host_room(). Empty except in tests.
std::string& system_root();

}  // namespace dp::kernels
