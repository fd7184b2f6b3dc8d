// The kinds of device that shared test bodies run on.
#pragma once

#include <vector>

#include "dp/device.h"

namespace dp::test {

// The oracle, the CPU, and the GPU where there is one. A program with a backend of its own says otherwise before main.
inline std::vector<DeviceKind>& tested_kinds() {
  static std::vector<DeviceKind> kinds = [] {
    std::vector<DeviceKind> found{DeviceKind::reference, DeviceKind::cpu};
    if (probe_devices(DeviceKind::cuda).count > 0) found.push_back(DeviceKind::cuda);
    return found;
  }();
  return kinds;
}

}  // namespace dp::test
