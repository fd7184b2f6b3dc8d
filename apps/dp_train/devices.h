// Chooses the devices of a run.
#pragma once

#include <dp/device.h>
#include <string>
#include <vector>

#include "command.h"

namespace dp_train {

struct Devices {
  std::vector<dp::Device> list;  // each repeated --replicas-per-device times
  std::string notice;            // printed when no device was named and this host has no GPU
  std::string warning;           // printed when no device was named and the GPUs of this host cannot be used
};

// Creates no CUDA context. dp::Error(usage) for invalid ids. dp::Error(device), with the reason, if GPUs are requested
// and none is usable.
Devices choose_devices(const Command& command);

// The given options that choose devices and processes, such as "--cpu 2". A resumed run does not restore them.
std::string device_options(const Command& command);

}  // namespace dp_train
