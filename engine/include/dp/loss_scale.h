// Dynamic loss scaling for training with float16, as PyTorch's GradScaler.
#pragma once

#include <cstdint>

namespace dp {

// The loss is multiplied by an adaptive scale, the same on every replica. A step with a non-finite gradient is skipped
// and multiplies the scale by `backoff`. After `growth_interval` finite steps in a row the scale is multiplied by
// `growth`.
struct LossScaleOptions {
  float initial = 65536;
  float growth = 2;
  float backoff = 0.5f;
  int growth_interval = 2000;
};

struct LossScale {
  float scale = 65536;
  std::uint32_t good_steps = 0;  // consecutive finite steps since the scale changed
};

}  // namespace dp
