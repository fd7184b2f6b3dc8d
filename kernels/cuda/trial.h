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
  float middle = 0;                   // of what is drawn
  std::size_t exact = 0;              // of the elements the first ones, which are equal or wrong
  std::vector<std::size_t> pieces{};  // of the others: compared by themselves, one behind the other; none: the whole
  bool tells_nan = false;             // where it is NaN, so is what depends on it
};
// Of the ops that can be tried; empty for the others.
std::vector<TrialArgument> trial_arguments(const OpDesc& desc);
// Whether there are several ways to compute it.
bool has_ways(const OpDesc& desc);

inline constexpr double kUnfit = 1e30;

// Microseconds of one run of each on the current device; kUnfit for those that fail or whose results differ from the first one's by
// more than rounding or lose a NaN, and for all where there is no memory for a trial.
std::vector<double> try_ops(const std::vector<TrialArgument>& arguments, std::span<CudaOp* const> ops);

// Runs the op once on memory of its own, so that libraries load what they run. Where there is no memory for it, they do that later.
void run_once(const std::vector<TrialArgument>& arguments, CudaOp& op);

}  // namespace dp::kernels::cuda
