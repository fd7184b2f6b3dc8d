// The ops that read and write a step's scalars, from host values to host values.
#pragma once

#include <optional>
#include <vector>

#include "dp/loss_functions.h"
#include "dp/optimizer.h"
#include "kernels/op_rig.h"
#include "kernels/step_state.h"

namespace dp::test {

struct LossResult {
  HostTensor dlogits;  // empty if not requested
  kernels::StepResults results;
};
// Adds to `before`. `scale`: loss scale, if any.
LossResult softmax_cross_entropy(OpRig& rig, const HostTensor& logits, const std::vector<std::int32_t>& labels,
                                 const kernels::StepInputs& inputs, bool gradient = true,
                                 const kernels::StepResults& before = {}, std::optional<float> scale = {});

LossResult loss_of_outputs(OpRig& rig, const OutputLoss& loss, const HostTensor& outputs, const HostTensor& targets,
                           const kernels::StepInputs& inputs, bool gradient = true,
                           const kernels::StepResults& before = {}, std::optional<float> scale = {});

// One update of `weights` and of the slots that `kind` uses. `groups`: as OptimizerUpdate's. Returns the copy of the
// new weights in the rig's activation type, if that differs from the weights' type. Elements without a copy are NaN.
// With tensor work, the weights are no matrix, and their trust ratio is 1. `after`: the results after the update.
HostTensor optimizer_update(OpRig& rig, const kernels::UpdateKind& kind, HostTensor& weights,
                            const HostTensor& gradients, const std::vector<HostTensor*>& slots,
                            const kernels::UpdateInputs& inputs, const kernels::StepResults& results,
                            const std::vector<std::uint8_t>& groups = {}, kernels::StepResults* after = nullptr);
// One tensor of `count` elements in segments of kNormBlock.
std::vector<kernels::TensorSegment> segments_of(std::int64_t count, TensorOfElement shape);
// The inputs of the first update by this optimizer, without parameter groups.
kernels::UpdateInputs update_inputs(const Optimizer& optimizer);
// The same for SGD. `momenta` may be null.
HostTensor sgd_update(OpRig& rig, HostTensor& weights, const HostTensor& gradients, HostTensor* momenta, const Sgd& sgd,
                      const kernels::StepResults& results);

std::vector<double> grad_norm_partials(OpRig& rig, const HostTensor& gradients);
kernels::StepResults grad_norm_finish(OpRig& rig, const std::vector<double>& partials,
                                      const kernels::StepInputs& inputs, const kernels::StepResults& before = {});
// For a scaled gradient. Updates `scaler`.
kernels::StepResults grad_norm_finish(OpRig& rig, const std::vector<double>& partials,
                                      const kernels::StepInputs& inputs, const kernels::LossScaling& scaling,
                                      kernels::LossScaler& scaler);

HostTensor moving_average(OpRig& rig, const HostTensor& x, const HostTensor& average, double decay);
HostTensor accumulate(OpRig& rig, const HostTensor& x, const HostTensor& y);

}  // namespace dp::test
