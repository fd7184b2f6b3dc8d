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

// Float64 against float64: the order of sums. Float32: as in the op tests.
inline double golden_tolerance(DeviceKind kind) { return kind == DeviceKind::reference ? 1e-13 : 1e-5; }

kernels::Window window_of(const GoldenFile& golden, const std::string& prefix);

}  // namespace dp::test
