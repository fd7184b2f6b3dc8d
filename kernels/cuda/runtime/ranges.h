// NVTX ranges that name a thread's activity in NVIDIA's profilers. No effect without a profiler.
#pragma once

namespace dp::kernels::cuda {

void begin_range(const char* name);
void end_range();  // ends the latest range of this thread

}  // namespace dp::kernels::cuda
