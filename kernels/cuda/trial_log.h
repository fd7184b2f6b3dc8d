// What each way to compute an op took, for whoever wants more than the winner.
#pragma once

#include <span>
#include <string>

#include "kernels/cuda/cuda_op.h"

namespace dp::kernels::cuda {

// Appends lines "problem <tab> way <tab> microseconds" to the file that DP_TUNING_LOG names, if it does; a way that did not agree with the first,
// or failed, has "-" there. `times`: as try_ops() has them.
void log_trial(const std::string& problem, std::span<CudaOp* const> ops, std::span<const double> times);

}  // namespace dp::kernels::cuda
