// What this machine can do at best: the floors of measured ops.
#pragma once

namespace dp::kernels {

// Fused multiply-adds on ten independent vectors in registers, float32, on so many OpenMP threads: the best of five.
double measured_gflops(int threads);
// A copy of 64 MiB, read and written bytes counted, on so many OpenMP threads: the best of five.
double measured_gbytes(int threads);

}  // namespace dp::kernels
