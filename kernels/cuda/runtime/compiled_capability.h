#pragma once

namespace dp::kernels::cuda {

// The compute capability (90 for 9.0) that the current device's code was compiled for. It is lower than the device's if
// the build has code only for an older one.
int compiled_capability();
// Whether the code for compute capability 9.0 is for sm_90a, which has products of warpgroups.
bool has_warpgroup_products();

}  // namespace dp::kernels::cuda
