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
std::string in_units(std::size_t bytes);  // "1.5 GiB", "384.0 KiB"

}  // namespace dp::engine
