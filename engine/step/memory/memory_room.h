// The memory of a device that is available to replicas.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "dp/device.h"

namespace dp::engine {

struct Room {
  std::size_t bytes = 0;
  std::string limit;  // source of the figure: the GPU, /proc/meminfo or a control group's file
};

// Free memory of the host or a GPU; empty if unknown.
std::optional<Room> room_on(const Device& device);
// The bytes that a buffer of this size occupies.
std::size_t occupied_bytes(const Device& device, std::size_t bytes);
// Bytes of this process that are now in memory; 0: unknown.
std::size_t process_resident_bytes();
// Bytes that each CPU replica, or stage of one, may use: DP_MEMORY_LIMIT in MiB. With it, a CPU can stand for a device
// of that size. Empty if it is not set. Error(usage) if it is not a positive number.
std::optional<std::size_t> replica_limit();
// The part of free memory that suggested sizes may use. A tenth is left for stacks, generated code and other processes.
inline std::size_t usable_part(std::size_t free) { return free / 10 * 9; }
// The largest rounding error of a replica's estimated memory, in bytes.
inline constexpr std::size_t kEstimateRounding = std::size_t{8} << 20;
std::string in_units(std::size_t bytes);  // "12.5 GiB", "1536.0 MiB", "384.0 KiB"

}  // namespace dp::engine
