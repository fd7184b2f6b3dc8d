#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/device/reference/reference_op.h"
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

class SoftmaxCrossEntropyOp final : public ReferenceOp<SoftmaxCrossEntropy> {
 public:
  explicit SoftmaxCrossEntropyOp(const SoftmaxCrossEntropy& desc) : ReferenceOp(desc, {}) {}

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<SoftmaxCrossEntropy>(pointers);
    const auto* labels = static_cast<const std::int32_t*>(args.labels);
    const auto& inputs = *static_cast<const StepInputs*>(args.inputs);
    double* dlogits = f64(args.dlogits);
    auto& results = *static_cast<StepResults*>(args.results);
    const double scale = static_cast<double>(inputs.loss_scale) *
                         (desc_.scaled ? static_cast<double>(static_cast<const LossScaler*>(args.scaler)->scale) : 1);
    for (std::int64_t n = 0; n < desc_.batch; ++n) {
      const double* logits = f64(args.logits) + n * desc_.classes;
      const double loss = sample(logits, labels[n], inputs, scale, dlogits ? dlogits + n * desc_.classes : nullptr);
      const std::int64_t better = classes_before(logits, labels[n]);
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
    const double largest = *std::max_element(logits, logits + classes);
    double sum = 0;
    for (std::int64_t k = 0; k < classes; ++k) sum += std::exp(logits[k] - largest);
    const double log_sum = largest + std::log(sum);
    double loss =
        label >= 0 && label < classes ? own * (log_sum - logits[label]) : std::numeric_limits<double>::quiet_NaN();
    for (std::int64_t k = 0; k < classes; ++k) {
      if (even > 0) loss += even * (log_sum - logits[k]);
      const double target = even + (k == label ? own : 0);
      if (grad) grad[k] = scale * (std::exp(logits[k] - log_sum) - target);
    }
    return loss;
  }

  // The number of classes that rank before the label: those with a greater logit, or an equal logit and a lower index.
  // If the label is invalid or its logit is NaN: all classes, at least 5, so that the label is not in the top 5.
  std::int64_t classes_before(const double* logits, std::int32_t label) const {
    if (label < 0 || label >= desc_.classes || std::isnan(logits[label]))
      return std::max<std::int64_t>(desc_.classes, 5);
    std::int64_t before = 0;
    for (std::int64_t k = 0; k < desc_.classes; ++k)
      before += logits[k] > logits[label] || (logits[k] == logits[label] && k < label);
    return before;
  }
};

class LossOfOutputsOp final : public ReferenceOp<LossOfOutputs> {
 public:
  explicit LossOfOutputsOp(const LossOfOutputs& desc) : ReferenceOp(desc, {}) {}

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<LossOfOutputs>(pointers);
    const auto* targets = static_cast<const float*>(args.targets);
    const auto& inputs = *static_cast<const StepInputs*>(args.inputs);
    const double *logits = f64(args.logits), outputs = static_cast<double>(desc_.outputs);
    double* dlogits = f64(args.dlogits);
    const double scale = static_cast<double>(inputs.loss_scale) *
                         (desc_.scaled ? static_cast<double>(static_cast<const LossScaler*>(args.scaler)->scale) : 1);
    for (std::int64_t n = 0; n < desc_.batch; ++n) {
      double sum = 0;
      for (std::int64_t i = n * desc_.outputs; i < (n + 1) * desc_.outputs; ++i)
        std::visit(
            [&](const auto& loss) {
              sum += loss.value(logits[i], static_cast<double>(targets[i]));
              if (dlogits) dlogits[i] = scale * loss.slope(logits[i], static_cast<double>(targets[i])) / outputs;
            },
            desc_.loss);
      add_sample(sum / outputs, dlogits != nullptr, *static_cast<StepResults*>(args.results));
    }
  }
};

}  // namespace

std::unique_ptr<HostOp> make(const LossOfOutputs& desc) { return std::make_unique<LossOfOutputsOp>(desc); }
std::unique_ptr<HostOp> make(const SoftmaxCrossEntropy& desc) { return std::make_unique<SoftmaxCrossEntropyOp>(desc); }

}  // namespace dp::kernels::reference
