// Values that change from step to step. They are in device memory, so that ops read them there and a captured graph
// stays valid (docs/decisions/0007).
#pragma once

#include <cstdint>

#include "kernels/update/update_rules.h"

namespace dp::kernels {

// Written by the host before the first op of a step, in stream order.
struct StepInputs {
  std::uint64_t seed = 0;
  std::uint64_t step = 0;  // part of the dropout key
  float loss_scale = 1;    // factor of each sample's loss gradient: 1 / global batch
  float label_smoothing = 0;
  float max_norm = 0;  // 0: no clipping
  std::uint32_t skip_nonfinite = 0;
  UpdateInputs update{};
  double average_share = 0;  // weight of the new value in the moving average: 1 - d
};

// Written by ops.
struct StepResults {
  // The loss adds to these. If it computes a gradient, a sample with a non-finite loss counts only in
  // `nonfinite`.
  double loss_sum = 0;
  std::int64_t samples = 0;
  std::int64_t top1 = 0;
  std::int64_t top5 = 0;
  std::int64_t nonfinite = 0;  // samples whose loss is not finite
  // GradNormFinish sets these. OptimizerUpdate applies clip and skip.
  double grad_norm = 0;    // L2 norm of the reduced gradient
  float clip = 1;          // factor for every gradient element
  std::uint32_t skip = 0;  // 1: weights and optimizer state stay unchanged
  std::uint32_t grad_nonfinite =
      0;  // 1: the reduced gradient or an updated weight contained NaN or Inf; stays set until the host clears it
  std::uint32_t skipped_steps = 0;  // incremented by GradNormFinish for each skip
};

// The number of this update, from 1, if skipped steps do not count.
constexpr std::int64_t number_of(const UpdateInputs& inputs, const StepResults& results) {
  return inputs.updates + 1 - static_cast<std::int64_t>(results.skipped_steps);
}

// State of dynamic loss scaling. It stays on the device across steps and is equal on all replicas.
struct LossScaler {
  float scale = 1;               // factor of the loss gradient
  float last_scale = 1;          // scale of the last finished step, i.e. of the gradients in the arena
  std::uint32_t good_steps = 0;  // consecutive finite steps since the scale changed
  std::uint32_t unused = 0;
};

// Inputs of GatherImages. They are in device memory, so that a recorded step also works with other data sets and
// epochs.
struct GatherInputs {
  const std::uint8_t* images = nullptr;  // device memory: any number of images (C,H,W), row-major
  const float* statistics = nullptr;     // device memory: the mean of each channel, then each standard deviation
  std::uint64_t seed = 0, epoch = 0;     // with the sample index, the key of the random augmentation
  std::int32_t padding = 0;              // black pixels on each side before the crop; >= 0
  std::uint16_t flip = 0;                // 1: flip with probability 1/2
  std::uint16_t augment = 0;             // 0: no crop and no flip

  bool operator==(const GatherInputs&) const = default;
};

}  // namespace dp::kernels
