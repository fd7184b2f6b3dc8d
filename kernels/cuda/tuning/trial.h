// Trials of several ops that should compute the same: checks the results and measures the times.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "kernels/cuda/cuda_op.h"

namespace dp::kernels::cuda {

// One argument of an op.
struct TrialArgument {
  std::size_t elements = 0;  // 0: the op has no argument here and gets null
  DType type = DType::f32;
  bool written = false;
  float middle = 0;                   // mean of the random data
  std::size_t exact = 0;              // the first `exact` elements must be equal
  std::vector<std::size_t> pieces{};  // lengths of ranges of the rest, compared separately; empty: one range
  bool tells_nan = false;             // NaN here must propagate to the results
};
// The arguments of an op that can be tried; empty for other ops.
std::vector<TrialArgument> trial_arguments(const OpDesc& desc);
// Whether the op has several candidates.
bool has_candidates(const OpDesc& desc);

inline constexpr double kUnfit = 1e30;

// The outcome of a trial.
enum class Verdict {
  fit,
  failed,
  differs,    // from the first op, by more than rounding
  loses_nan,  // results are correct, but a NaN input gives results that are not NaN
  untried,    // no time or no memory for the trial
};
struct TrialResult {
  Verdict verdict = Verdict::untried;
  double microseconds = kUnfit;  // per run; kUnfit unless the verdict is fit
  bool eager = false;            // capture failed: timed without a graph
};
// For logs: why there is no time, or how it was measured. May be empty.
std::string note_of(const TrialResult& result);

// Tries each op on the current device and compares its results with those of the first op. Microseconds are
// TrialTimer's. Once `out_of_time` returns true, the remaining ops stay untried. The time limit does not apply to the
// first op.
std::vector<TrialResult> try_ops(const std::vector<TrialArgument>& arguments, std::span<CudaOp* const> ops,
                                 const std::function<bool()>& out_of_time = {});

// Runs the op once on temporary memory, so that libraries load their kernels. Does nothing if memory is short; the
// libraries then load them later.
void run_once(const std::vector<TrialArgument>& arguments, CudaOp& op);

}  // namespace dp::kernels::cuda
