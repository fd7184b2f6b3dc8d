// dp_train selftest: whether the devices of this machine train correctly.
#pragma once

#include <dp/device.h>
#include <atomic>
#include <vector>

namespace dp_train {

// Trains a small network on these devices and checks what it computes, stores and reproduces; prints a line for each
// check. False if one failed. Ends after the current step once `stop` is not 0, and returns false.
bool selftest(const std::vector<dp::Device>& devices, const std::atomic<int>& stop);

}  // namespace dp_train
