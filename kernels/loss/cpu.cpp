// SoftmaxCrossEntropy. Samples run in parallel and are then added in order, so that the sums do not depend on the
// number of threads.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "kernels/device/cpu/cpu_op.h"
#include "kernels/device/cpu/parallel.h"
#include "kernels/op_args.h"
#include "kernels/step_state.h"

namespace dp::kernels {
namespace {

struct SampleResult {
  double loss;
  std::int64_t before;  // classes that rank before the label
};

// The number of classes that rank before the label. If the label is invalid or its logit is NaN: all classes, at least
// 5, so that the label is not in the top 5.
std::int64_t classes_before(const float* logits, std::int64_t classes, std::int64_t label) {
  if (label < 0 || label >= classes || std::isnan(logits[label])) return std::max<std::int64_t>(classes, 5);
  const float own = logits[label];
  std::int64_t before = 0;
  for (std::int64_t k = 0; k < classes; ++k) before += logits[k] > own || (logits[k] == own && k < label);
  return before;
}

SampleResult one_sample(const float* logits, std::int64_t classes, std::int64_t label, const StepInputs& step,
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

class LossOp : public HostOp {
 public:
  LossOp(const SoftmaxCrossEntropy& d, const CpuOpOptions& options)
      : batch_(d.batch), classes_(d.classes), threads_(threads_for(options.threads, d.batch * d.classes * 8)) {}
  std::size_t workspace_bytes() const override { return static_cast<std::size_t>(batch_) * sizeof(SampleResult); }
  std::string implementation() const override { return "own:double"; }

  void execute(std::span<void* const> pointers, void* workspace) override {
    const auto args = args_of<SoftmaxCrossEntropy>(pointers);
    const float* logits = static_cast<const float*>(args.logits);
    const std::int32_t* labels = static_cast<const std::int32_t*>(args.labels);
    const StepInputs& step = *static_cast<const StepInputs*>(args.inputs);
    float* dlogits = static_cast<float*>(args.dlogits);
    StepResults& results = *static_cast<StepResults*>(args.results);
    SampleResult* samples = static_cast<SampleResult*>(workspace);
    parallel_ranges(threads_, batch_, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t n = begin; n < end; ++n)
        samples[n] = one_sample(logits + n * classes_, classes_, labels[n], step,
                                dlogits == nullptr ? nullptr : dlogits + n * classes_);
    });
    for (std::int64_t n = 0; n < batch_; ++n) {
      if (dlogits != nullptr && !std::isfinite(samples[n].loss)) {
        ++results.nonfinite;
        continue;
      }
      results.loss_sum += samples[n].loss;
      results.samples += 1;
      results.top1 += samples[n].before < 1;
      results.top5 += samples[n].before < 5;
      results.nonfinite += !std::isfinite(samples[n].loss);
    }
  }

 private:
  std::int64_t batch_, classes_;
  int threads_;
};

}  // namespace

std::unique_ptr<HostOp> make(const SoftmaxCrossEntropy& d, const CpuOpOptions& options) {
  return std::make_unique<LossOp>(d, options);
}

}  // namespace dp::kernels
