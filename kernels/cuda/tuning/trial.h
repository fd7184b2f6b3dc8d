// Runs of several ops that should compute the same: whether they do, and how long each takes.
#pragma once

#include <functional>
#include <span>
#include <string>
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

// What became of an op that was tried.
enum class Verdict {
  fit,
  failed,
  differs,    // from the first one, by more than rounding
  loses_nan,  // its results are right, but it writes numbers where its input is NaN
  untried,    // there was no time, or no memory for a trial
};
struct TrialResult {
  Verdict verdict = Verdict::untried;
  double microseconds = kUnfit;  // of one run; kUnfit unless it is fit
  bool eager = false;            // it cannot be captured: timed by single launches
};
// For logs: why there is no time, or how it was measured; empty where nothing is to be said.
std::string note_of(const TrialResult& result);

// Of each op on the current device, beside the first one; microseconds as TrialTimer has them. Once `out_of_time` returns true, what has
// not been tried is left untried; the first one always is tried.
std::vector<TrialResult> try_ops(const std::vector<TrialArgument>& arguments, std::span<CudaOp* const> ops,
                                 const std::function<bool()>& out_of_time = {});

// Runs the op once on memory of its own, so that libraries load what they run. Where there is no memory for it, they do that later.
void run_once(const std::vector<TrialArgument>& arguments, CudaOp& op);

}  // namespace dp::kernels::cuda
