// SoftmaxCrossEntropy: a warp for each sample, in double; then one thread adds the samples in order. A small batch is done by one
// block, a large one by many and a second kernel. Compiled without contraction of a*b+c, as update.cu is.
#include "kernels/cuda/block_reduce.h"
#include "kernels/cuda/cuda_op.h"
#include "kernels/cuda/linear_loss.h"
#include "kernels/cuda/linear_tensors.h"
#include "kernels/step_state.h"

namespace dp::kernels::cuda {
namespace {

constexpr int kThreads = 256, kAloneThreads = 1024;
constexpr std::int64_t kAloneBatch = 4 * kAloneThreads / 32;  // that one block takes: four samples for each warp
constexpr std::int64_t kMostWeights = 4096;                   // of a linear layer that one block computes

struct Problem {
  long long batch, classes;
  double per_class;  // 1 / classes
};

struct SampleResult {
  double loss;
  long long before;  // classes that stand before the label
};

// Sample n, by a whole warp. `dlogits` may be null, and `scaler`. The result is in every lane.
__device__ __forceinline__ SampleResult one_sample(const float* logits, const int* labels, const Problem& problem,
                                                   long long n, const StepInputs& inputs, const LossScaler* scaler,
                                                   float* dlogits) {
  const long long lane = threadIdx.x % 32, classes = problem.classes;
  const int label = labels[n];
  logits += n * classes;
  const double even = inputs.label_smoothing * problem.per_class;
  const double own = 1.0 - static_cast<double>(inputs.label_smoothing);
  const bool is_class = label >= 0 && label < classes;
  const double own_logit = is_class ? static_cast<double>(logits[label]) : 0.0;

  double largest = -INFINITY, logit_sum = 0;  // a NaN is in the sums, wherever it stands
  long long before = 0;
  for (long long k = lane; k < classes; k += 32) {
    const double logit = logits[k];
    largest = logit > largest ? logit : largest;
    logit_sum += logit;
    before += logit > own_logit || (logit == own_logit && k < label);
  }
  largest = warp_max(largest);
  logit_sum = warp_sum(logit_sum);
  before = warp_sum(before);
  double sum = 0;
  for (long long k = lane; k < classes; k += 32) sum += exp(logits[k] - largest);
  sum = warp_sum(sum);
  const double log_sum = largest + log(sum);

  double loss = is_class ? own * (log_sum - own_logit) : NAN;
  if (even > 0) loss += even * (static_cast<double>(classes) * log_sum - logit_sum);
  if (dlogits) {
    const double scale = inputs.loss_scale * (scaler ? static_cast<double>(scaler->scale) : 1.0);
    for (long long k = lane; k < classes; k += 32)
      dlogits[n * classes + k] =
          static_cast<float>(scale * (exp(logits[k] - log_sum) - even - (k == label ? own : 0.0)));
  }
  if (!is_class || own_logit != own_logit) before = classes < 5 ? 5 : classes;
  return {loss, before};
}

// By one thread. In training a sample without a finite loss counts as that alone.
__device__ __forceinline__ void add_samples(const SampleResult* samples, long long batch, bool training,
                                            StepResults& results) {
  double loss_sum = results.loss_sum;
  long long counted = 0, top1 = 0, top5 = 0, nonfinite = 0;
  for (long long n = 0; n < batch; ++n) {
    const SampleResult sample = samples[n];
    const bool finite = sample.loss - sample.loss == 0;
    nonfinite += !finite;
    if (training && !finite) continue;
    loss_sum += sample.loss;
    ++counted;
    top1 += sample.before < 1;
    top5 += sample.before < 5;
  }
  results.loss_sum = loss_sum;
  results.samples += counted;
  results.top1 += top1;
  results.top5 += top5;
  results.nonfinite += nonfinite;
}

__global__ void __launch_bounds__(kAloneThreads)
    loss_of_small_batch_kernel(const float* logits, const int* labels, const StepInputs* inputs,
                               const LossScaler* scaler, float* dlogits, StepResults* results, Problem problem) {
  DP_SHARED(SampleResult, samples, [kAloneBatch]);
  for (long long n = threadIdx.x / 32; n < problem.batch; n += kAloneThreads / 32) {
    const SampleResult sample = one_sample(logits, labels, problem, n, *inputs, scaler, dlogits);
    if (threadIdx.x % 32 == 0) samples[n] = sample;
  }
  __syncthreads();
  if (threadIdx.x == 0) add_samples(samples, problem.batch, dlogits != nullptr, *results);
}

// The same, with the linear layer that makes the logits. One block; a warp makes those of a sample.
__global__ void __launch_bounds__(kAloneThreads)
    linear_loss_kernel(const float* x, const float* w, const float* bias, float* logits, const int* labels,
                       const StepInputs* inputs, const LossScaler* scaler, float* dlogits, StepResults* results,
                       Problem problem, long long features) {
  DP_SHARED(SampleResult, samples, [kAloneBatch]);
  const long long lane = threadIdx.x % 32;
  for (long long n = threadIdx.x / 32; n < problem.batch; n += kAloneThreads / 32) {
    for (long long k = 0; k < problem.classes; ++k) {
      float sum = 0;
      for (long long i = lane; i < features; i += 32) sum = fmaf(x[n * features + i], w[k * features + i], sum);
      sum = warp_sum(sum);
      if (lane == 0) logits[n * problem.classes + k] = bias ? sum + bias[k] : sum;
    }
    __syncwarp();  // the logits of a sample are read by the warp that wrote them
    const SampleResult sample = one_sample(logits, labels, problem, n, *inputs, scaler, dlogits);
    if (lane == 0) samples[n] = sample;
  }
  __syncthreads();
  if (threadIdx.x == 0) add_samples(samples, problem.batch, dlogits != nullptr, *results);
}

__global__ void __launch_bounds__(kThreads)
    loss_of_samples_kernel(const float* logits, const int* labels, const StepInputs* inputs, const LossScaler* scaler,
                           float* dlogits, SampleResult* samples, Problem problem) {
  const long long n = static_cast<long long>(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32;
  if (n >= problem.batch) return;
  const SampleResult sample = one_sample(logits, labels, problem, n, *inputs, scaler, dlogits);
  if (threadIdx.x % 32 == 0) samples[n] = sample;
}

// One block.
__global__ void __launch_bounds__(kThreads)
    add_losses_kernel(const SampleResult* samples, StepResults* results, long long batch, bool training) {
  DP_SHARED(SampleResult, near, [kThreads]);
  for (long long first = 0; first < batch; first += kThreads) {
    if (first + threadIdx.x < batch) near[threadIdx.x] = samples[first + threadIdx.x];
    __syncthreads();
    if (threadIdx.x == 0) add_samples(near, min(batch - first, static_cast<long long>(kThreads)), training, *results);
    __syncthreads();
  }
}

class LossOp final : public CudaOp {
 public:
  explicit LossOp(const SoftmaxCrossEntropy& desc)
      : problem_{desc.batch, desc.classes, 1.0 / static_cast<double>(desc.classes)}, scaled_(desc.scaled) {}
  std::size_t workspace_bytes() const override {
    return alone() ? 0 : static_cast<std::size_t>(problem_.batch) * sizeof(SampleResult);
  }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> args, void* workspace) override {
    if (problem_.batch == 0) return;
    void* const scaler = scaled_ ? args[5] : nullptr;
    if (alone())
      return launch({"loss_of_small_batch", dim3(1), dim3(kAloneThreads), stream}, loss_of_small_batch_kernel, args[0],
                    args[1], args[2], scaler, args[3], args[4], problem_);
    launch({"loss_of_samples", dim3(blocks_for(problem_.batch, kThreads / 32)), dim3(kThreads), stream},
           loss_of_samples_kernel, args[0], args[1], args[2], scaler, args[3], workspace, problem_);
    launch({"add_losses", dim3(1), dim3(kThreads), stream}, add_losses_kernel, workspace, args[4], problem_.batch,
           args[3] != nullptr);
  }

 private:
  bool alone() const { return problem_.batch <= kAloneBatch && problem_.batch * problem_.classes <= 16384; }

  Problem problem_;
  bool scaled_;
};

class LinearLossOp final : public CudaOp {
 public:
  LinearLossOp(const LinearLoss& d, const LinearTensors& t)
      : problem_{d.loss.batch, d.loss.classes, 1.0 / static_cast<double>(d.loss.classes)},
        features_(t.x.shape[1]),
        bias_(d.linear.bias),
        scaled_(d.loss.scaled) {
    tensors_ = {t.x, t.w, t.y};
  }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> args, void*) override {
    if (problem_.batch == 0) return;
    launch({"linear_loss", dim3(1), dim3(kAloneThreads), stream}, linear_loss_kernel, in(args[0]), in(args[1]),
           bias_ ? in(args[2]) : nullptr, out(args[3]), args[4], args[5], scaled_ ? args[8] : nullptr, args[6], args[7],
           problem_, features_);
  }

 private:
  Problem problem_;
  long long features_;
  bool bias_, scaled_;
};

}  // namespace

bool fits_one_block(const LinearLoss& d) {
  return d.loss.batch <= kAloneBatch && d.linear.x.shape.rank() == 2 &&
         d.loss.classes * d.linear.x.shape[1] <= kMostWeights;
}
std::unique_ptr<CudaOp> make_linear_loss(const LinearLoss& d) {
  return std::make_unique<LinearLossOp>(d, resolved_linear(d.linear.x, d.linear.w, d.linear.y));
}

std::unique_ptr<CudaOp> make(const SoftmaxCrossEntropy& desc, const CudaOpOptions&) {
  return std::make_unique<LossOp>(desc);
}

}  // namespace dp::kernels::cuda
