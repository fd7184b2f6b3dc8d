// The CPU backend, and the measured rates of this machine.
#pragma once

#include "kernels/device/backend.h"

namespace dp::kernels {

Backend& cpu_backend();

// Measured peak rates of this machine, from which lower bounds of op times follow.

// GFLOP/s of float32 multiply-adds (two operations each) on independent vectors in registers, the widest that the
// processor has, on `threads` OpenMP threads; the best of five runs.
double measured_gflops(int threads);
// GFLOP/s of oneDNN's product of two bfloat16 matrices of 1024 x 1024; the best of twenty runs.
double measured_bfloat16_gflops(int threads);
// GB/s of a copy of 64 MiB, with the bytes read and written, on `threads` OpenMP threads; the best of five runs.
double measured_gbytes(int threads);

}  // namespace dp::kernels
