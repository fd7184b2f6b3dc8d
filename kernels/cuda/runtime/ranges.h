// Names for what a thread does, for NVIDIA's profilers (NVTX): nothing happens unless one watches.
#pragma once

namespace dp::kernels::cuda {

void begin_range(const char* name);
void end_range();  // the latest that this thread began

}  // namespace dp::kernels::cuda
