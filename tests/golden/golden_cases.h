// The cases of a golden file, each checked on every device.
#pragma once

#include <functional>
#include <string>

#include "golden/golden_file.h"
#include "kernels/op_rig.h"
#include "kernels/ops.h"

namespace dp::test {

// Calls check(kind, "group.i.") for every case of the group on every device, and asks for `expected` cases.
void for_each_case(const GoldenFile& golden, const std::string& group, int expected,
                   const std::function<void(DeviceKind, const std::string&)>& check);
void for_each_case(const GoldenFile& golden, const std::string& group, int expected,
                   const std::function<void(OpRig&, const std::string&)>& check);

// Of a value of a case, "conv2d.0.dw": about ten times the largest error measured in its group. The oracle differs from PyTorch's float64 by
// the order of sums. GPUs, where only whole runs of gpu-check measure, have what SEMANTICS allows convolutions.
double golden_tolerance(DeviceKind kind, const std::string& name);

kernels::Window window_of(const GoldenFile& golden, const std::string& prefix);

}  // namespace dp::test
