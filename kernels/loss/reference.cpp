#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/device/reference/reference_op.h"
#include "kernels/loss/rank.h"
#include "kernels/op_args.h"
#include "kernels/step_state.h"

namespace dp::kernels::reference {
namespace {

// Returns whether the sample counts: in training, one without a finite loss does not.
bool add_sample(double loss, bool training, StepResults& results) {
  results.nonfinite += !std::isfinite(loss);
  if (training && !std::isfinite(loss)) return false;
  results.loss_sum += loss;
  results.samples += 1;
  return true;
}

// log of the sum of exp(logits).
double log_sum_of(const double* logits, std::int64_t classes) {
  const double largest = *std::max_element(logits, logits + classes);
  double sum = 0;
  for (std::int64_t k = 0; k < classes; ++k) sum += std::exp(logits[k] - largest);
  return largest + std::log(sum);
}

class SoftmaxCrossEntropyOp final : public ReferenceOp<SoftmaxCrossEntropy> {
 public:
  explicit SoftmaxCrossEntropyOp(const SoftmaxCrossEntropy& desc) : ReferenceOp(desc, {}) {}

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<SoftmaxCrossEntropy>(pointers);
    const auto* labels = static_cast<const std::int32_t*>(args.targets);
    const auto& inputs = *static_cast<const StepInputs*>(args.inputs);
    double* dlogits = f64(args.dlogits);
    auto& results = *static_cast<StepResults*>(args.results);
    const double scale = static_cast<double>(inputs.loss_scale) *
                         (desc_.scaled ? static_cast<double>(static_cast<const LossScaler*>(args.scaler)->scale) : 1);
    for (std::int64_t n = 0; n < desc_.batch; ++n) {
      const double* logits = f64(args.logits) + n * desc_.classes;
      const double loss = sample(logits, labels[n], inputs, scale, dlogits ? dlogits + n * desc_.classes : nullptr);
      const std::int64_t better = classes_before(logits, desc_.classes, labels[n]);
      if (!add_sample(loss, dlogits != nullptr, results)) continue;
      results.top1 += better < 1;
      results.top5 += better < 5;
    }
  }

 private:
  // The loss of one sample: - sum over classes of target * log softmax. An invalid label gives NaN.
  double sample(const double* logits, std::int32_t label, const StepInputs& inputs, double scale, double* grad) const {
    const std::int64_t classes = desc_.classes;
    const double even = static_cast<double>(inputs.label_smoothing) / static_cast<double>(classes);
    const double own = 1.0 - static_cast<double>(inputs.label_smoothing);
    const double log_sum = log_sum_of(logits, classes);
    double loss =
        label >= 0 && label < classes ? own * (log_sum - logits[label]) : std::numeric_limits<double>::quiet_NaN();
    for (std::int64_t k = 0; k < classes; ++k) {
      if (even > 0) loss += even * (log_sum - logits[k]);
      const double target = even + (k == label ? own : 0);
      if (grad) grad[k] = scale * (std::exp(logits[k] - log_sum) - target);
    }
    return loss;
  }
};

class LossOfOutputsOp final : public ReferenceOp<LossOfOutputs> {
 public:
  explicit LossOfOutputsOp(const LossOfOutputs& desc) : ReferenceOp(desc, {}) {}

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<LossOfOutputs>(pointers);
    const auto* targets = static_cast<const float*>(args.targets);
    const auto& inputs = *static_cast<const StepInputs*>(args.inputs);
    const double* logits = f64(args.logits);
    double* dlogits = f64(args.dlogits);
    auto& results = *static_cast<StepResults*>(args.results);
    const double scale = static_cast<double>(inputs.loss_scale) *
                         (desc_.scaled ? static_cast<double>(static_cast<const LossScaler*>(args.scaler)->scale) : 1);
    for (std::int64_t n = 0; n < desc_.batch; ++n) {
      const std::int64_t row = n * desc_.outputs;
      const float* const of_sample = targets + n * desc_.columns();
      const double weight = desc_.weighted ? static_cast<double>(of_sample[desc_.outputs]) : 1;
      double* const grad = dlogits ? dlogits + row : nullptr;
      std::int64_t better = 5;
      const double sum = std::visit(
          [&](const auto& loss) { return sample(loss, logits + row, of_sample, scale * weight, grad, better); },
          desc_.loss);
      if (!add_sample(weight * sum, dlogits != nullptr, results)) continue;
      results.top1 += better < 1;
      results.top5 += better < 5;
    }
  }

 private:
  template <typename F>
  double sample(const F& loss, const double* logits, const float* targets, double scale, double* grad,
                std::int64_t& /*better*/) const {
    const double outputs = static_cast<double>(desc_.outputs);
    double sum = 0;
    for (std::int64_t i = 0; i < desc_.outputs; ++i) {
      sum += loss.value(logits[i], static_cast<double>(targets[i]));
      if (grad) grad[i] = scale * loss.slope(logits[i], static_cast<double>(targets[i])) / outputs;
    }
    return sum / outputs;
  }
  double sample(const SoftCrossEntropyLoss& loss, const double* logits, const float* targets, double scale,
                double* grad, std::int64_t& better) const {
    const double log_sum = log_sum_of(logits, desc_.outputs);
    double target_sum = 0, sum = 0;
    for (std::int64_t k = 0; k < desc_.outputs; ++k) {
      target_sum += static_cast<double>(targets[k]);
      sum += loss.value(logits[k] - log_sum, static_cast<double>(targets[k]));
    }
    for (std::int64_t k = 0; grad && k < desc_.outputs; ++k)
      grad[k] = scale * loss.slope(logits[k] - log_sum, static_cast<double>(targets[k]), target_sum);
    better = classes_before(logits, desc_.outputs, std::max_element(targets, targets + desc_.outputs) - targets);
    return sum;
  }
};

}  // namespace

std::unique_ptr<HostOp> make(const LossOfOutputs& desc) { return std::make_unique<LossOfOutputsOp>(desc); }
std::unique_ptr<HostOp> make(const SoftmaxCrossEntropy& desc) { return std::make_unique<SoftmaxCrossEntropyOp>(desc); }

}  // namespace dp::kernels::reference
