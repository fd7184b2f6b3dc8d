// The few numbers of a step that change from step to step. They live in device memory, so that ops read
// them there and a captured graph need not change.
#pragma once

#include <cstdint>

namespace dp::kernels {

// Written by the host before the first op of a step, in stream order.
struct StepInputs {
  std::uint64_t seed = 0;
  std::uint64_t step = 0;  // dropout's key
  float loss_scale = 1;    // each sample's loss gradient is multiplied by it: 1 / global batch
  float label_smoothing = 0;
  float lr = 0;
  float momentum = 0;
  float weight_decay = 0;
  std::uint32_t nesterov = 0;
  float max_norm = 0;  // 0: no clipping
  std::uint32_t skip_nonfinite = 0;
};

// Written by ops.
struct StepResults {
  // SoftmaxCrossEntropy adds to these; where it computes a gradient, a sample without a finite loss to `nonfinite` alone.
  double loss_sum = 0;
  std::int64_t samples = 0;
  std::int64_t top1 = 0;
  std::int64_t top5 = 0;
  std::int64_t nonfinite = 0;  // samples whose loss is not finite
  // GradNormFinish sets these; Sgd obeys them.
  double grad_norm = 0;    // L2, of the gradient as reduced
  float clip = 1;          // factor for every gradient element
  std::uint32_t skip = 0;  // 1: leave weights and momenta as they are
  std::uint32_t grad_nonfinite =
      0;  // 1: the reduced gradient or an updated weight held NaN or Inf; kept until the host clears it
  std::uint32_t skipped_steps = 0;  // GradNormFinish adds one for each skip
};

// Dynamic loss scaling: kept on the device from step to step, the same on every replica.
struct LossScaler {
  float scale = 1;               // factor of the loss's gradient
  float last_scale = 1;          // that of the last finished step, whose gradients lie in the arena
  std::uint32_t good_steps = 0;  // in a row, since the scale was changed
  std::uint32_t unused = 0;
};

// Of what GatherImages makes a batch, and how. It lies on the device: a step that was recorded goes on with other sets and epochs.
struct GatherInputs {
  const std::uint8_t* images = nullptr;  // any number of (C,H,W), row-major; the device's, as the next
  const float* statistics = nullptr;     // 2C: the mean, then the deviation of each channel
  std::uint64_t seed = 0, epoch = 0;     // with the sample, the key of what is drawn
  std::int32_t padding = 0;              // black pixels on every side, before the crop; not negative
  std::uint16_t flip = 0;                // 1: by chance
  std::uint16_t augment = 0;             // 0: nothing is drawn, and images are left as they are

  bool operator==(const GatherInputs&) const = default;
};

}  // namespace dp::kernels
