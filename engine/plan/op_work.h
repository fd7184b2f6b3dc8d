// Arithmetic and memory traffic of a plan's ops, and their names.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/plan/plan.h"

namespace dp::engine {

struct OpWork {
  std::string kind;   // "conv2d_forward", "reorder", "batch_norm_moments"
  std::string label;  // "layer1.0.conv1+bn"
  std::string shape;  // key of the work: equal for ops that do the same
  double flops = 0;   // a multiply-add counts as two; 0: memory traffic only
  double bytes = 0;   // size of the tensors it must read and write
  // Of a convolution or linear layer: N, C, H, W, O; kernel, stride, padding and dilation, each down and across; the
  // groups. A linear layer is a 1x1 convolution on 1x1 images. Empty for other ops, and if the padding differs between
  // the sides.
  std::vector<std::int64_t> convolution;
};
OpWork work_of(const PlanStep& step);
// Lower bound of the op's time in seconds: its arithmetic or its memory traffic, whichever takes longer. 0 if the rates
// are unknown.
double floor_of(const OpWork& work, const kernels::Rates& rates);
// The sum over all ops of a plan.
double floor_of(const Plan& plan, const kernels::Rates& rates);
OpWork update_work(std::int64_t parameters);

}  // namespace dp::engine
