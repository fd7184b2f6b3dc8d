#include "engine/step/memory/memory_room.h"

#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "dp/error.h"
#include "kernels/device/backend.h"
#include "kernels/device/host/memory.h"

namespace dp::engine {

std::optional<Room> room_on(const Device& device) {
  if (device.kind == DeviceKind::cuda) {
    const std::size_t free = kernels::backend(device.kind).free_memory(device);
    if (free == 0) return {};
    return Room{free, to_string(device)};
  }
  const auto host = kernels::host_room();
  if (!host) return {};
  return Room{host->bytes, host->limit};
}

std::optional<std::size_t> replica_limit() {
  const char* const text = std::getenv("DP_MEMORY_LIMIT");
  if (text == nullptr) return {};
  double mebibytes = 0;
  const char* const end = text + std::strlen(text);
  const auto [last, error] = std::from_chars(text, end, mebibytes);
  if (error != std::errc() || last != end || !(mebibytes > 0) || !(mebibytes < 1e9))
    throw Error(ErrorCode::usage, fmt::format("DP_MEMORY_LIMIT='{}' is not a positive number of MiB", text));
  return static_cast<std::size_t>(mebibytes * (1 << 20));
}

std::size_t process_resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::size_t all = 0, resident = 0;
  file >> all >> resident;
  return resident * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

std::size_t occupied_bytes(const Device& device, std::size_t bytes) {
  return bytes == 0 || device.kind == DeviceKind::cuda ? bytes : kernels::resident_bytes(bytes);
}

std::string in_units(std::size_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (bytes >= std::size_t{10} << 30) return fmt::format("{:.1f} GiB", value / (1 << 30));
  if (bytes >= std::size_t{1} << 20) return fmt::format("{:.1f} MiB", value / (1 << 20));
  return fmt::format("{:.1f} KiB", value / (1 << 10));
}

}  // namespace dp::engine
