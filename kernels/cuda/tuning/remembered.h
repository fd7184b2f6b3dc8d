// Figures found by timing on a set of GPUs, kept from run to run beside the tuner's choices.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "dp/device.h"

namespace dp::kernels::cuda {

std::optional<double> remembered(std::span<const Device> devices, const std::string& what);
void remember(std::span<const Device> devices, const std::string& what, double value);

}  // namespace dp::kernels::cuda
