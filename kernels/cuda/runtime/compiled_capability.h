#pragma once

namespace dp::kernels::cuda {

// The compute capability (90 for 9.0) that the current device's code was compiled for. It is lower than the device's if
// the build has code only for an older one.
int compiled_capability();
// Whether the current device runs machine code for sm_90a, which has wgmma, and not code that the driver made from PTX.
bool has_wgmma();

}  // namespace dp::kernels::cuda
