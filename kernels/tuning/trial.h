// Trials measure the time of candidates and the distance between their results.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "dp/shape.h"
#include "kernels/device/backend.h"
#include "kernels/device/cuda/cuda_op.h"
#include "kernels/device/cuda/runtime.h"

namespace dp::kernels::cuda {

// Times ops as in a training step: captured in a graph, with data that is not in the L2 cache (docs/decisions/0032).
class TrialTimer {
 public:
  struct Argument {
    void* data = nullptr;
    std::size_t bytes = 0;  // 0: the op does not have this argument
  };
  // `stream` and the arguments belong to the current device and outlive the timer.
  TrialTimer(cudaStream_t stream, std::vector<Argument> arguments);

  // Consecutive runs of one op. They alternate between copies of the arguments. Together the copies exceed the cache.
  struct Runs {
    GraphExecHandle graph;  // null: capture failed; the runs are launched one by one
    int count = 0;
  };
  Runs prepare(CudaOp& op, int count, void* workspace);
  // The time of one run. Overwrites the cache first. Error(device) if a run fails.
  double microseconds_of(const Runs& runs, CudaOp& op, void* workspace);

 private:
  void copy_arguments(int runs);
  std::span<void* const> arguments_of(int run) const { return copies_[static_cast<std::size_t>(run) % copies_.size()]; }

  cudaStream_t stream_;
  EventHandle begin_, end_;
  const std::vector<Argument> arguments_;
  std::size_t overwritten_bytes_ = 0;
  DeviceMemory overwritten_;          // null: memory was short
  std::size_t most_copies_ = 1;       // including the original arguments
  std::vector<DeviceMemory> memory_;  // of the copies, without the original
  std::vector<std::vector<void*>> copies_;
};

// The distance between two results of a trial.

struct Distance {
  double apart = 0, norm = 0;  // sums of (a - b)^2 and of b^2; NaN propagates
  double numbers = 0;          // number of elements of a that are not NaN
};

// Elements per part, for at most 512 parts. The last part may be shorter.
constexpr std::size_t distance_part(std::size_t count) { return (count + 511) / 512; }

// Compares `count` > 0 elements of a and b, of f32, f64, bf16 or f16, on the current device; one Distance per part.
// Allocates and waits for the stream, so it must not be used in a step. In native/trial_distance.cu; the counterpart in
// tests/simulated_cuda runs on the host.
std::vector<Distance> distances(cudaStream_t stream, const void* a, const void* b, DType type, std::size_t count);

// Trials of several ops that should compute the same: checks the results and measures the times.

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

// Random data for trials.

// Writes `count` random numbers in [middle - 1, middle + 1] of type f32, f64, bf16 or f16. Equal seeds give equal
// numbers.
void enqueue_random(cudaStream_t stream, void* to, DType type, std::size_t count, float middle, unsigned seed);

// The rates that a GPU reaches: a large copy and a large matrix product.

// Measured once per process, device and type, in about a second, on the calling thread's current device. What cannot be
// measured, for lack of memory or of cuBLASLt, is calculated from the clocks; `source` says so.
Rates measured_rates(int device, DType type, const CudaOpOptions& options);

}  // namespace dp::kernels::cuda
