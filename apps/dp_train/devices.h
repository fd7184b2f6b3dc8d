// Which devices a run uses.
#pragma once

#include <dp/device.h>
#include <string>
#include <vector>

#include "arguments.h"

namespace dp_train {

struct Devices {
  std::vector<dp::Device> list;  // each repeated --replicas-per-device times
  std::string notice;            // printed when no device was named and this host has no GPU
  std::string warning;           // printed when no device was named and the GPUs of this host can not be used
};

// dp::Error(usage) for ids that can not be, dp::Error(device) naming the reason when GPUs are asked for and none is
// usable. Makes no context.
Devices choose_devices(const Arguments& arguments);

}  // namespace dp_train
