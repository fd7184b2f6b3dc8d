// Runs of several ops that should compute the same: whether they do, and how long each takes.
#pragma once

#include <span>
#include <vector>

#include "kernels/cuda/cuda_op.h"

namespace dp::kernels::cuda {

// What an op reads and writes.
struct TrialArgument {
  std::size_t elements = 0;  // 0: the op has no such argument, and gets null
  DType type = DType::f32;
  bool written = false;
};
// Of the ops that can be chosen among; empty for the others.
std::vector<TrialArgument> trial_arguments(const OpDesc& desc);

inline constexpr double kUnfit = 1e30;

// Microseconds of one run of each on the current device; kUnfit for those that fail or whose results differ from the first one's by
// more than rounding, and for all where there is no memory for a trial.
std::vector<double> try_ops(const std::vector<TrialArgument>& arguments, std::span<CudaOp* const> ops);

}  // namespace dp::kernels::cuda
