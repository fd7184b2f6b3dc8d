#include "kernels/cuda/runtime/ranges.h"

#include <nvtx3/nvToolsExt.h>

namespace dp::kernels::cuda {

void begin_range(const char* name) { nvtxRangePushA(name); }
void end_range() { nvtxRangePop(); }

}  // namespace dp::kernels::cuda
