// The loss.
#pragma once

#include "dp/loss_functions.h"
#include "kernels/op.h"

namespace dp::kernels {

// Cross-entropy with label smoothing of each sample; dlogits = loss_scale * (softmax - target). Adds the loss and the
// counts of samples, top-1, top-5 and non-finite samples to StepResults. A label is in the top k if fewer than k
// classes rank before it: those with a greater logit, or an equal logit and a lower index. A label with a NaN logit is
// never in the top k. Losses are added in a fixed order in double. `scaled`: dlogits are also multiplied by
// LossScaler::scale. Logits and dlogits are (N,classes), row-major, of the compute type; targets are labels, i32 (N).
// The others are StepInputs, StepResults and LossScaler.
struct SoftmaxCrossEntropy {
  static constexpr const char* kName = "softmax_cross_entropy";
  DP_ARGS(logits, targets, inputs, dlogits, results, scaler);  // dlogits: may be null; scaler: null unless scaled
  std::int64_t batch = 0;
  std::int64_t classes = 0;
  bool scaled = false;

  void check(const OpCheck& op) const {
    op.count(batch);
    op.at_least_one(classes, "class");
    if (scaled) op.scales_losses();
  }
};
DP_ON_EVERY_BACKEND(SoftmaxCrossEntropy);

// The loss of outputs that have targets of their own. A sample's loss is the mean over its outputs, or their sum for
// SoftCrossEntropyLoss; dlogits = loss_scale * d(loss)/d(logits). Adds to StepResults as SoftmaxCrossEntropy does. With
// SoftCrossEntropyLoss the first of the greatest targets is the label. With the other losses no sample is in the top 1
// or 5. Targets are float32, of the shape of the logits, row-major. `weighted`: each row of targets ends with one more
// number, the factor of the sample's loss.
struct LossOfOutputs {
  static constexpr const char* kName = "loss_of_outputs";
  DP_ARGS(logits, targets, inputs, dlogits, results, scaler);  // as SoftmaxCrossEntropy's
  OutputLoss loss;
  std::int64_t batch = 0;
  std::int64_t outputs = 0;
  bool scaled = false;
  bool weighted = false;

  std::int64_t columns() const { return outputs + weighted; }  // of the targets
  void check(const OpCheck& op) const {
    op.count(batch);
    op.at_least_one(outputs, "output");
    if (scaled) op.scales_losses();
  }
};
DP_ON_EVERY_BACKEND(LossOfOutputs);

}  // namespace dp::kernels
