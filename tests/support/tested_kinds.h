// The kinds of device that shared test bodies run on.
#pragma once

#include <cstdlib>
#include <string_view>
#include <vector>

#include "dp/device.h"

namespace dp::test {

// Reference, CPU, and CUDA if a GPU is present. DP_TESTED_KINDS=cuda selects the GPU alone. A program with another
// backend changes the list before main.
inline std::vector<DeviceKind>& tested_kinds() {
  static std::vector<DeviceKind> kinds = [] {
    const char* const only = std::getenv("DP_TESTED_KINDS");
    if (only != nullptr && std::string_view(only) == "cuda") return std::vector<DeviceKind>{DeviceKind::cuda};
    std::vector<DeviceKind> found{DeviceKind::reference, DeviceKind::cpu};
    if (probe_devices(DeviceKind::cuda).count > 0) found.push_back(DeviceKind::cuda);
    return found;
  }();
  return kinds;
}

}  // namespace dp::test
