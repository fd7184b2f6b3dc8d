// Updates of the weights by an optimizer, and the norm of the gradient.
#pragma once

#include <optional>

#include "kernels/op.h"
#include "kernels/update/update_rules.h"

namespace dp::kernels {

// The update of an optimizer on a range of the arenas, with clip and skip of StepResults. Sets grad_nonfinite if an
// updated weight is not finite. `copy` (bf16 or f16): also writes the new weights in that type to the arg copy. Updates
// weights and state in place. state: the slots that `kind` uses, one after another; null if there are none. groups: one
// byte per kGroupElements elements, an index into UpdateInputs::groups; null: all are 0. inputs: StepInputs. results:
// StepResults.
struct OptimizerUpdate {
  DP_ARGS(weights, gradients, state, groups, inputs, results, copy);
  std::int64_t count = 0;
  UpdateKind kind{};
  std::optional<DType> copy{};
  std::int64_t stride = 0;  // elements from one slot of the state to the next

  const char* name() const { return name_of(kind); }
  void check(const OpCheck& op) const {
    op.count(count);
    if (copy) op.low_type(*copy);
  }
};
DP_ON_EVERY_BACKEND(OptimizerUpdate);

// Moving average of weights: average += StepInputs::average_share * (x - average).
struct MovingAverage {
  static constexpr const char* kName = "moving_average";
  DP_ARGS(x, average, inputs);  // inputs: StepInputs
  std::int64_t count = 0;

  void check(const OpCheck& op) const { op.count(count); }
};
DP_ON_EVERY_BACKEND(MovingAverage);

// Sums of squares in double, one for each kNormBlock elements from the start of the range. A NaN or Inf element makes
// its partial sum non-finite. partials: ceil(count/kNormBlock) doubles.
inline constexpr std::int64_t kNormBlock = 1024;
struct GradNormPartials {
  static constexpr const char* kName = "grad_norm_partials";
  DP_ARGS(x, partials);
  std::int64_t count = 0;

  void check(const OpCheck& op) const { op.count(count); }
};
DP_ON_EVERY_BACKEND(GradNormPartials);

// Dynamic loss scaling as in PyTorch's GradScaler. The scale stays a finite normal number.
struct LossScaling {
  float growth = 2;      // factor after `interval` consecutive steps without overflow
  float backoff = 0.5f;  // factor after a step whose gradient is not finite
  std::uint32_t interval = 2000;
};

// Adds `blocks` partials in order. Sets grad_norm, clip = min(1, max_norm / (grad_norm + 1e-6)), skip and
// grad_nonfinite, and increments skipped_steps if the step is skipped. With `scaling` the partials are those of a
// gradient that is LossScaler::scale times too large. grad_norm and max_norm refer to the unscaled gradient. clip is
// divided by the scale, so that OptimizerUpdate unscales the gradient. A non-finite gradient always skips the step and
// does not set grad_nonfinite. The scale is then adapted as LossScaling describes.
struct GradNormFinish {
  static constexpr const char* kName = "grad_norm_finish";
  DP_ARGS(partials, inputs, results, scaler);  // StepInputs, StepResults, LossScaler (null without scaling)
  std::int64_t blocks = 0;
  std::optional<LossScaling> scaling{};

  void check(const OpCheck& op) const {
    op.count(blocks);
    if (scaling) op.scales_losses();
  }
};
DP_ON_EVERY_BACKEND(GradNormFinish);

}  // namespace dp::kernels
