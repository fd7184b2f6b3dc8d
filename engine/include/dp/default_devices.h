// The devices of a program that names none.
#pragma once

#include <vector>

#include "dp/device.h"

namespace dp {

// Every GPU that this process can use; two CPU replicas where there is no driver or it sees no device. Error(device) where the driver
// sees devices and none can be used, with the reason: each file that was looked for when there is no CUDA plugin.
std::vector<Device> default_devices();

}  // namespace dp
