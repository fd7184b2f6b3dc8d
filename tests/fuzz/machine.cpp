// What the readers ask of the machine, in place of engine/base/machine.cpp, which needs the devices.
#include "engine/base/machine.h"

#include <cstdint>
#include <vector>

#include "dp/device.h"

namespace dp {

std::uint64_t available_memory() { return std::uint64_t{1} << 34; }
const std::vector<int>& process_cores() {
  static const std::vector<int> cores{0};
  return cores;
}
CoreLimit available_cores(int) { return {}; }

}  // namespace dp
