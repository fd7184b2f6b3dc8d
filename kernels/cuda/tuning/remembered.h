// Measured values for a set of GPUs, kept between runs in the folder of the tuning cache.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "dp/device.h"

namespace dp::kernels::cuda {

std::optional<double> remembered(std::span<const Device> devices, const std::string& what);
void remember(std::span<const Device> devices, const std::string& what, double value);

}  // namespace dp::kernels::cuda
