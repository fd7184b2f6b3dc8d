// What memory a device has left for replicas.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "dp/device.h"

namespace dp::engine {

struct Room {
  std::size_t bytes = 0;
  std::string limit;  // what sets it
};

// Of the host, or of a GPU; nothing where it is not known.
std::optional<Room> room_on(const Device& device);
// What a buffer of so many bytes takes of it.
std::size_t taken_on(const Device& device, std::size_t bytes);
// Of what is free, what may be promised: a tenth is left to stacks, generated code and everybody else.
inline std::size_t promised(std::size_t free) { return free / 10 * 9; }
// The most that rounding up adds to a replica's memory, of a size that is only estimated.
inline constexpr std::size_t kRounding = std::size_t{8} << 20;
std::string in_units(std::size_t bytes);  // "12.5 GiB", "1536.0 MiB", "384.0 KiB"

}  // namespace dp::engine
