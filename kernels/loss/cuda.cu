// SoftmaxCrossEntropy, LinearLoss and LossOfOutputs: one warp per sample, the loss in double. Each block
// adds its samples; the last block adds the blocks' sums. The order depends only on the
// batch. Compiled without contraction of a*b+c, like update/cuda.cu.
#include "kernels/device/cuda/block.h"
#include "kernels/device/cuda/cuda_op.h"
#include "kernels/device/cuda/runtime.h"
#include "kernels/linear/cuda_linear.h"
#include "kernels/op_args.h"
#include "kernels/step_state.h"

namespace dp::kernels::cuda {
namespace {

constexpr int kThreads = 256, kSamples = kThreads / 32;  // per block

struct Problem {
  long long batch, classes;
  double per_class;       // 1 / classes
  bool weighted = false;  // LossOfOutputs
};

struct SampleResult {
  double loss;
  long long before;  // classes that rank above the label
};

// Loss of sample n, computed by a warp. `scaler` and `dlogits` may be null. All lanes return the result.
__device__ __forceinline__ SampleResult sample_of_class(const float* logits, const int* labels, const Problem& problem,
                                                        long long n, const StepInputs& inputs, const LossScaler* scaler,
                                                        float* dlogits) {
  const long long lane = threadIdx.x % 32, classes = problem.classes;
  const int label = labels[n];
  logits += n * classes;
  const double even = inputs.label_smoothing * problem.per_class;
  const double own = 1.0 - static_cast<double>(inputs.label_smoothing);
  const bool is_class = label >= 0 && label < classes;
  const double own_logit = is_class ? static_cast<double>(logits[label]) : 0.0;

  double largest = -INFINITY, logit_sum = 0;  // `largest` ignores NaN; the sums propagate it
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

// The same, for a sample that has targets. `logits`, `targets` and `dlogits` begin at the sample.
template <typename F>
__device__ __forceinline__ SampleResult sample_of_targets(const F& loss, const float* logits, const float* targets,
                                                          const Problem& problem, double scale, float* dlogits) {
  const double each = scale * problem.per_class;
  double sum = 0;
  for (long long i = threadIdx.x % 32; i < problem.classes; i += 32) {
    const double output = logits[i], target = targets[i];
    sum += loss.value(output, target);
    if (dlogits) dlogits[i] = static_cast<float>(each * loss.slope(output, target));
  }
  return {warp_sum(sum) * problem.per_class, 5};  // not in the top 5
}
__device__ __forceinline__ SampleResult sample_of_targets(const SoftCrossEntropyLoss& loss, const float* logits,
                                                          const float* targets, const Problem& problem, double scale,
                                                          float* dlogits) {
  const long long lane = threadIdx.x % 32, classes = problem.classes;
  double largest = -INFINITY, greatest = -INFINITY, target_sum = 0;  // of logits; of targets
  for (long long k = lane; k < classes; k += 32) {
    const double logit = logits[k], target = targets[k];
    largest = logit > largest ? logit : largest;
    greatest = target > greatest ? target : greatest;
    target_sum += target;
  }
  largest = warp_max(largest);
  greatest = warp_max(greatest);
  target_sum = warp_sum(target_sum);
  double exponentials = 0, label = -static_cast<double>(classes);  // minus the first class with the greatest target
  for (long long k = lane; k < classes; k += 32) {
    exponentials += exp(logits[k] - largest);
    if (targets[k] == greatest && -static_cast<double>(k) > label) label = -static_cast<double>(k);
  }
  const double log_sum = largest + log(warp_sum(exponentials));
  label = -warp_max(label);
  const bool is_class = label < static_cast<double>(classes);
  const double own_logit = is_class ? static_cast<double>(logits[static_cast<long long>(label)]) : NAN;

  double sum = 0;
  long long before = 0;
  for (long long k = lane; k < classes; k += 32) {
    const double logit = logits[k], target = targets[k];
    sum += loss.value(logit - log_sum, target);
    if (dlogits) dlogits[k] = static_cast<float>(scale * loss.slope(logit - log_sum, target, target_sum));
    before += logit > own_logit || (logit == own_logit && static_cast<double>(k) < label);
  }
  before = warp_sum(before);
  if (own_logit != own_logit) before = classes < 5 ? 5 : classes;
  return {warp_sum(sum), before};
}

// Totals of some samples. In training, a sample with a non-finite loss adds only to `nonfinite`.
struct Sums {
  double loss;
  long long counted, top1, top5, nonfinite;

  __device__ static Sums of(const SampleResult& sample, bool training) {
    const bool finite = sample.loss - sample.loss == 0, counts = finite || !training;
    return {counts ? sample.loss : 0.0, counts, counts && sample.before < 1, counts && sample.before < 5, !finite};
  }
  __device__ void add(const Sums& other) {
    loss += other.loss;
    counted += other.counted, top1 += other.top1, top5 += other.top5, nonfinite += other.nonfinite;
  }
};

// Adds `count` totals with one warp: each lane adds every 32nd, then the lanes are added
// in a tree. The result is in lane 0.
__device__ __forceinline__ Sums added(const Sums* sums, long long count) {
  Sums own{};
  for (long long i = threadIdx.x % 32; i < count; i += 32) own.add(sums[i]);
  for (unsigned distance = 16; distance > 0; distance /= 2) {
    const auto other = [=](auto value) { return __shfl_down_sync(kFullWarp, value, distance); };
    own.add({other(own.loss), other(own.counted), other(own.top1), other(own.top5), other(own.nonfinite)});
  }
  return own;
}

// Adds all samples to *results. Each warp has written its sample to `samples`, in shared memory. `blocks`: room for the
// totals of each block. `counter`: 0.
__device__ __forceinline__ void add_samples(const Sums* samples, long long batch, Sums* blocks, unsigned* counter,
                                            StepResults* results) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const long long first = static_cast<long long>(blockIdx.x) * kSamples;
  __syncthreads();
  if (warp == 0) {
    const Sums own = added(samples, min(batch - first, static_cast<long long>(kSamples)));
    if (lane == 0) blocks[blockIdx.x] = own;
  }
  if (!is_last_block(counter, gridDim.x) || warp != 0) return;
  const Sums all = added(blocks, gridDim.x);
  if (lane != 0) return;
  results->loss_sum += all.loss;
  results->samples += all.counted;
  results->top1 += all.top1;
  results->top5 += all.top5;
  results->nonfinite += all.nonfinite;
}

__global__ void __launch_bounds__(kThreads)
    loss_kernel(const float* logits, const int* labels, const StepInputs* inputs, const LossScaler* scaler,
                float* dlogits, StepResults* results, Sums* blocks, unsigned* counter, Problem problem) {
  DP_SHARED(Sums, samples, [kSamples]);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const long long n = static_cast<long long>(blockIdx.x) * kSamples + warp;
  if (n < problem.batch) {
    const SampleResult sample = sample_of_class(logits, labels, problem, n, *inputs, scaler, dlogits);
    if (threadIdx.x % 32 == 0) samples[warp] = Sums::of(sample, dlogits != nullptr);
  }
  add_samples(samples, problem.batch, blocks, counter, results);
}

// The loss of outputs that have targets of their own.
template <typename F>
__global__ void __launch_bounds__(kThreads)
    output_loss_kernel(const float* logits, const float* targets, const StepInputs* inputs, const LossScaler* scaler,
                       float* dlogits, StepResults* results, Sums* blocks, unsigned* counter, Problem problem, F loss) {
  DP_SHARED(Sums, samples, [kSamples]);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const long long n = static_cast<long long>(blockIdx.x) * kSamples + warp;
  if (n < problem.batch) {
    const long long row = n * problem.classes;
    targets += problem.weighted ? row + n : row;
    const double weight = problem.weighted ? static_cast<double>(targets[problem.classes]) : 1.0;
    const double scale = inputs->loss_scale * (scaler ? static_cast<double>(scaler->scale) : 1.0) * weight;
    SampleResult sample =
        sample_of_targets(loss, logits + row, targets, problem, scale, dlogits ? dlogits + row : nullptr);
    sample.loss *= weight;
    if (lane == 0) samples[warp] = Sums::of(sample, dlogits != nullptr);
  }
  add_samples(samples, problem.batch, blocks, counter, results);
}

// loss_kernel preceded by the linear layer: each warp computes the logits of its sample.
__global__ void __launch_bounds__(kThreads)
    linear_loss_kernel(const float* x, const float* w, const float* bias, float* logits, const int* labels,
                       const StepInputs* inputs, const LossScaler* scaler, float* dlogits, StepResults* results,
                       Sums* blocks, unsigned* counter, Problem problem, long long features) {
  DP_SHARED(Sums, samples, [kSamples]);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const long long n = static_cast<long long>(blockIdx.x) * kSamples + warp;
  if (n < problem.batch) {
    for (long long k = 0; k < problem.classes; ++k) {
      float sum = 0;
      for (long long i = lane; i < features; i += 32) sum = fmaf(x[n * features + i], w[k * features + i], sum);
      sum = warp_sum(sum);
      if (lane == 0) logits[n * problem.classes + k] = bias ? sum + bias[k] : sum;
    }
    __syncwarp();  // lane 0 has written the logits that all lanes read
    const SampleResult sample = sample_of_class(logits, labels, problem, n, *inputs, scaler, dlogits);
    if (lane == 0) samples[warp] = Sums::of(sample, dlogits != nullptr);
  }
  add_samples(samples, problem.batch, blocks, counter, results);
}

class LossOp final : public CudaOp {
 public:
  explicit LossOp(const SoftmaxCrossEntropy& desc)
      : problem_{desc.batch, desc.classes, 1.0 / static_cast<double>(desc.classes)},
        scaled_(desc.scaled),
        counter_(zeroed_counters(1)) {}
  std::size_t workspace_bytes() const override { return blocks_for(problem_.batch, kSamples) * sizeof(Sums); }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void* workspace) override {
    const auto args = args_of<SoftmaxCrossEntropy>(pointers);
    if (problem_.batch == 0) return;
    launch({"loss", dim3(blocks_for(problem_.batch, kSamples)), dim3(kThreads), stream}, loss_kernel, args.logits,
           args.targets, args.inputs, scaled_ ? args.scaler : nullptr, args.dlogits, args.results, workspace,
           counter_.get(), problem_);
  }

 private:
  Problem problem_;
  bool scaled_;
  DeviceMemory counter_;
};

class LossOfOutputsOp final : public CudaOp {
 public:
  explicit LossOfOutputsOp(const LossOfOutputs& desc)
      : problem_{desc.batch, desc.outputs, 1.0 / static_cast<double>(desc.outputs), desc.weighted},
        loss_(desc.loss),
        scaled_(desc.scaled),
        counter_(zeroed_counters(1)) {}
  std::size_t workspace_bytes() const override { return blocks_for(problem_.batch, kSamples) * sizeof(Sums); }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void* workspace) override {
    const auto args = args_of<LossOfOutputs>(pointers);
    if (problem_.batch == 0) return;
    std::visit(
        [&]<typename F>(const F& loss) {
          launch({"output_loss", dim3(blocks_for(problem_.batch, kSamples)), dim3(kThreads), stream},
                 output_loss_kernel<F>, args.logits, args.targets, args.inputs, scaled_ ? args.scaler : nullptr,
                 args.dlogits, args.results, workspace, counter_.get(), problem_, loss);
        },
        loss_);
  }

 private:
  Problem problem_;
  OutputLoss loss_;
  bool scaled_;
  DeviceMemory counter_;
};

class LinearLossOp final : public CudaOp {
 public:
  LinearLossOp(const LinearLoss& d, const LinearTensors& t)
      : problem_{d.loss.batch, d.loss.classes, 1.0 / static_cast<double>(d.loss.classes)},
        features_(t.x.shape[1]),
        bias_(d.linear.bias),
        scaled_(d.loss.scaled),
        counter_(zeroed_counters(1)) {
    tensors_ = {t.x, t.w, t.y};
  }
  std::size_t workspace_bytes() const override { return blocks_for(problem_.batch, kSamples) * sizeof(Sums); }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void* workspace) override {
    const auto args = args_of<LinearLoss>(pointers);
    if (problem_.batch == 0) return;
    launch({"linear_loss", dim3(blocks_for(problem_.batch, kSamples)), dim3(kThreads), stream}, linear_loss_kernel,
           in(args.x), in(args.w), bias_ ? in(args.b) : nullptr, out(args.logits), args.targets, args.inputs,
           scaled_ ? args.scaler : nullptr, args.dlogits, args.results, workspace, counter_.get(), problem_, features_);
  }

 private:
  Problem problem_;
  long long features_;
  bool bias_, scaled_;
  DeviceMemory counter_;
};

}  // namespace

std::unique_ptr<CudaOp> make_linear_loss(const LinearLoss& d) {
  return std::make_unique<LinearLossOp>(d, resolved_linear(d.linear.x, d.linear.w, d.linear.y));
}

std::unique_ptr<CudaOp> make(const SoftmaxCrossEntropy& desc, const CudaOpOptions&) {
  return std::make_unique<LossOp>(desc);
}
std::unique_ptr<CudaOp> make(const LossOfOutputs& desc, const CudaOpOptions&) {
  return std::make_unique<LossOfOutputsOp>(desc);
}

}  // namespace dp::kernels::cuda
