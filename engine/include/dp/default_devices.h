// The default devices.
#pragma once

#include <vector>

#include "dp/device.h"

namespace dp {

// Every GPU that this process can use; two CPU replicas if there is no driver or it reports no device. Error(device) if
// the driver reports devices and none can be used. The message gives the reason; without a CUDA plugin it lists the
// files that were tried.
std::vector<Device> default_devices();

}  // namespace dp
