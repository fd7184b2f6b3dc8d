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
    op.require(tensor_work(kind) == TensorWork::none, "the optimizer computes with whole tensors");
    if (copy) op.low_type(*copy);
  }
};
DP_ON_EVERY_BACKEND(OptimizerUpdate);

// The update of an optimizer with tensor work: UpdateDirection, then TrustRatios or Orthogonalize, then ApplyDirection.
// `count` segments (TensorSegment, in the arg segments) of the arenas are updated; other args are as for
// OptimizerUpdate. Skipped steps change nothing but, perhaps, partials, ratios and directions.

// Updates the state and writes u to `direction`, an array of the weights' type. With TensorWork::trust_ratio, writes
// two doubles per segment to `partials`: the sums of squares of its weights and of its u.
struct UpdateDirection {
  static constexpr const char* kName = "update_direction";
  DP_ARGS(weights, gradients, state, groups, inputs, results, segments, direction, partials);
  std::int64_t count = 0;
  UpdateKind kind{};
  std::int64_t stride = 0;

  void check(const OpCheck& op) const {
    op.count(count);
    op.require(tensor_work(kind) != TensorWork::none, "the optimizer has no tensor work");
  }
};
DP_ON_EVERY_BACKEND(UpdateDirection);

// Adds the partial sums of each tensor in order. Tensor t has those of the segments first[t] to first[t + 1] (int64).
// ratios: a double for each tensor, norm of the weights / norm of u; 1 if one of them is 0.
struct TrustRatios {
  static constexpr const char* kName = "trust_ratios";
  DP_ARGS(partials, first, ratios);
  std::int64_t tensors = 0;

  void check(const OpCheck& op) const { op.count(tensors); }
};
DP_ON_EVERY_BACKEND(TrustRatios);

// x = U V^T approximately, where U S V^T is the singular value decomposition of x (rows, columns), row-major, in place:
// x /= max(norm(x), 1e-7), then five times x = a x + b (x x^T) x + c (x x^T)^2 x, with (a, b, c) = kNewtonSchulz.
// Singular values end between about 0.7 and 1.2. In the compute type. Source: see dp::Muon.
inline constexpr int kNewtonSchulzSteps = 5;
inline constexpr double kNewtonSchulz[] = {3.4445, -4.7750, 2.0315}, kLeastMatrixNorm = 1e-7;
struct Orthogonalize {
  static constexpr const char* kName = "orthogonalize";
  DP_ARGS(x);
  std::int64_t rows = 0, columns = 0;

  std::int64_t side() const { return std::min(rows, columns); }  // of x x^T; with more rows than columns of x^T x
  void check(const OpCheck& op) const {
    op.at_least_one(rows, "row");
    op.at_least_one(columns, "column");
  }
};
DP_ON_EVERY_BACKEND(Orthogonalize);

// The new weights. ratios: as TrustRatios writes them; not read without TensorWork::trust_ratio.
struct ApplyDirection {
  static constexpr const char* kName = "apply_direction";
  DP_ARGS(weights, direction, groups, inputs, results, segments, ratios, copy);
  std::int64_t count = 0;
  UpdateKind kind{};
  std::optional<DType> copy{};

  void check(const OpCheck& op) const {
    op.count(count);
    op.require(tensor_work(kind) != TensorWork::none, "the optimizer has no tensor work");
    if (copy) op.low_type(*copy);
  }
};
DP_ON_EVERY_BACKEND(ApplyDirection);

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
