// How much an op of a plan has to do: arithmetic, memory traffic, and what it is called.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/plan/plan.h"

namespace dp::engine {

struct OpWork {
  std::string kind;   // "conv2d_forward", "reorder", "forward" of anything else
  std::string label;  // "layer1.0.conv1+bn"
  std::string shape;  // of the work: equal for ops that do the same
  double flops = 0;   // a multiplication and an addition are two; 0: it only moves memory
  double bytes = 0;   // of the tensors it must touch
  // Of a convolution or linear layer: N,C,H,W,O,kernel,stride,padding; a linear layer is one of 1x1 on 1x1.
  std::vector<std::int64_t> convolution;
};
OpWork work_of(const PlanStep& step);
OpWork update_work(std::int64_t parameters);

}  // namespace dp::engine
