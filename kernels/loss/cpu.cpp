// SoftmaxCrossEntropy and LossOfOutputs. Samples run in parallel and are then added in order, so that the sums do not
// depend on the number of threads.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "kernels/device/cpu/cpu_op.h"
#include "kernels/device/cpu/parallel.h"
#include "kernels/loss/rank.h"
#include "kernels/op_args.h"
#include "kernels/step_state.h"

namespace dp::kernels {
namespace {

struct SampleResult {
  double loss;
  std::int64_t before;  // classes that rank before the label
};

SampleResult sample_of_class(const float* logits, std::int64_t classes, std::int64_t label, const StepInputs& step,
                             float* dlogits) {
  const double even = static_cast<double>(step.label_smoothing) / static_cast<double>(classes);
  const double own = 1.0 - static_cast<double>(step.label_smoothing);
  const double largest = *std::max_element(logits, logits + classes);
  double sum = 0, logit_sum = 0;
  for (std::int64_t k = 0; k < classes; ++k) {
    sum += std::exp(logits[k] - largest);
    logit_sum += logits[k];
  }
  const double log_sum = largest + std::log(sum);
  double loss = std::numeric_limits<double>::quiet_NaN();
  if (label >= 0 && label < classes) loss = own * (log_sum - logits[label]);
  if (even > 0) loss += even * (static_cast<double>(classes) * log_sum - logit_sum);
  if (dlogits != nullptr)
    for (std::int64_t k = 0; k < classes; ++k)
      dlogits[k] =
          static_cast<float>(step.loss_scale * (std::exp(logits[k] - log_sum) - even - (k == label ? own : 0.0)));
  return {loss, classes_before(logits, classes, label)};
}

template <typename F>
SampleResult sample_of_targets(const F& loss, const float* logits, const float* targets, std::int64_t outputs,
                               double scale, float* dlogits) {
  constexpr std::int64_t kNoRank = 5;  // not in the top 5
  const double each = scale / static_cast<double>(outputs);
  double sum = 0;
  for (std::int64_t i = 0; i < outputs; ++i) {
    const double output = logits[i], target = targets[i];
    sum += loss.value(output, target);
    if (dlogits != nullptr) dlogits[i] = static_cast<float>(each * loss.slope(output, target));
  }
  return {sum / static_cast<double>(outputs), kNoRank};
}

SampleResult sample_of_targets(const SoftCrossEntropyLoss& loss, const float* logits, const float* targets,
                               std::int64_t classes, double scale, float* dlogits) {
  const double largest = *std::max_element(logits, logits + classes);
  double exponentials = 0, target_sum = 0, sum = 0;
  for (std::int64_t k = 0; k < classes; ++k) {
    exponentials += std::exp(logits[k] - largest);
    target_sum += targets[k];
  }
  const double log_sum = largest + std::log(exponentials);
  for (std::int64_t k = 0; k < classes; ++k) sum += loss.value(logits[k] - log_sum, targets[k]);
  if (dlogits != nullptr)
    for (std::int64_t k = 0; k < classes; ++k)
      dlogits[k] = static_cast<float>(scale * loss.slope(logits[k] - log_sum, targets[k], target_sum));
  return {sum, classes_before(logits, classes, std::max_element(targets, targets + classes) - targets)};
}

class LossOp : public HostOp {
 public:
  std::size_t workspace_bytes() const override { return static_cast<std::size_t>(batch_) * sizeof(SampleResult); }
  std::string implementation() const override { return "own:double"; }

 protected:
  LossOp(std::int64_t batch, std::int64_t outputs, const CpuOpOptions& options)
      : batch_(batch), outputs_(outputs), threads_(threads_for(options.threads, batch * outputs * 8)) {}

  // Calls sample(n) for every sample, which returns its SampleResult, and adds all to `results`.
  template <typename Sample>
  void run(bool training, StepResults& results, void* workspace, const Sample& sample) const {
    SampleResult* const samples = static_cast<SampleResult*>(workspace);
    parallel_ranges(threads_, batch_, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t n = begin; n < end; ++n) samples[n] = sample(n);
    });
    for (std::int64_t n = 0; n < batch_; ++n) {
      results.nonfinite += !std::isfinite(samples[n].loss);
      if (training && !std::isfinite(samples[n].loss)) continue;
      results.loss_sum += samples[n].loss;
      results.samples += 1;
      results.top1 += samples[n].before < 1;
      results.top5 += samples[n].before < 5;
    }
  }

  std::int64_t batch_, outputs_;
  int threads_;
};

class SoftmaxCrossEntropyOp final : public LossOp {
 public:
  SoftmaxCrossEntropyOp(const SoftmaxCrossEntropy& d, const CpuOpOptions& options)
      : LossOp(d.batch, d.classes, options) {}

  void execute(std::span<void* const> pointers, void* workspace) override {
    const auto args = args_of<SoftmaxCrossEntropy>(pointers);
    const float* logits = static_cast<const float*>(args.logits);
    const std::int32_t* labels = static_cast<const std::int32_t*>(args.targets);
    const StepInputs& step = *static_cast<const StepInputs*>(args.inputs);
    float* dlogits = static_cast<float*>(args.dlogits);
    run(dlogits != nullptr, *static_cast<StepResults*>(args.results), workspace, [&](std::int64_t n) {
      return sample_of_class(logits + n * outputs_, outputs_, labels[n], step,
                             dlogits == nullptr ? nullptr : dlogits + n * outputs_);
    });
  }
};

class LossOfOutputsOp final : public LossOp {
 public:
  LossOfOutputsOp(const LossOfOutputs& d, const CpuOpOptions& options)
      : LossOp(d.batch, d.outputs, options), desc_(d) {}

  void execute(std::span<void* const> pointers, void* workspace) override {
    const auto args = args_of<LossOfOutputs>(pointers);
    const float *logits = static_cast<const float*>(args.logits), *targets = static_cast<const float*>(args.targets);
    float* dlogits = static_cast<float*>(args.dlogits);
    const double scale = static_cast<double>(static_cast<const StepInputs*>(args.inputs)->loss_scale);
    std::visit(
        [&](const auto& loss) {
          run(dlogits != nullptr, *static_cast<StepResults*>(args.results), workspace, [&](std::int64_t n) {
            const std::int64_t row = n * outputs_;
            const float* const of_sample = targets + n * desc_.columns();
            const double weight = desc_.weighted ? static_cast<double>(of_sample[outputs_]) : 1;
            SampleResult sample = sample_of_targets(loss, logits + row, of_sample, outputs_, scale * weight,
                                                    dlogits == nullptr ? nullptr : dlogits + row);
            sample.loss *= weight;
            return sample;
          });
        },
        desc_.loss);
  }

 private:
  LossOfOutputs desc_;
};

}  // namespace

std::unique_ptr<HostOp> make(const SoftmaxCrossEntropy& d, const CpuOpOptions& options) {
  return std::make_unique<SoftmaxCrossEntropyOp>(d, options);
}
std::unique_ptr<HostOp> make(const LossOfOutputs& d, const CpuOpOptions& options) {
  return std::make_unique<LossOfOutputsOp>(d, options);
}

}  // namespace dp::kernels
