#pragma once

namespace dp::kernels::cuda {

// For which compute capability, as 90, the code was compiled that the current device runs: less than its own where it had to be
// translated from an older one's.
int compiled_capability();

}  // namespace dp::kernels::cuda
