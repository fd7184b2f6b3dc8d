// Runs every case of a golden file on every device.
#pragma once

#include <functional>
#include <string>

#include "golden/golden_file.h"
#include "kernels/op_rig.h"
#include "kernels/ops.h"

namespace dp::test {

// Calls check(kind, "group.i.") for every case of the group on every device. The group must have `expected` cases.
void for_each_case(const GoldenFile& golden, const std::string& group, int expected,
                   const std::function<void(DeviceKind, const std::string&)>& check);
void for_each_case(const GoldenFile& golden, const std::string& group, int expected,
                   const std::function<void(OpRig&, const std::string&)>& check);

// The tolerance for a value of a case such as "conv2d.0.dw": about ten times the largest error measured in its group.
// The reference device differs from PyTorch's float64 by the order of sums only. GPUs use the tolerance of promise
// 10 in docs/reference/semantics.md; only the step `tests` of ./dev gpu-visit measures them.
double golden_tolerance(DeviceKind kind, const std::string& name);

kernels::Window window_of(const GoldenFile& golden, const std::string& prefix);

}  // namespace dp::test
