// What `dp_train env` tells of the GPUs.
#pragma once

#include <string>

namespace dp::kernels::cuda {

// The runtime, each of `count` devices, and how each pair exchanges data; a line each.
std::string describe_devices(int count);

}  // namespace dp::kernels::cuda
