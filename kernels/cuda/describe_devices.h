// The GPU part of `dp_train env`.
#pragma once

#include <string>

namespace dp::kernels::cuda {

// One line each: the runtime, the libraries, each of `count` devices, and how each pair exchanges data.
std::string describe_devices(int count);

}  // namespace dp::kernels::cuda
