// Dynamic loss scaling, for training with float16.
#pragma once

#include <cstdint>

namespace dp {

// The loss is multiplied by a scale that adapts, the same on every replica: a step whose gradient is not finite is skipped and multiplies it
// by backoff; so many steps in a row without one multiply it by growth. PyTorch's GradScaler.
struct LossScaleOptions {
  float initial = 65536;
  float growth = 2;
  float backoff = 0.5f;
  int growth_interval = 2000;
};

struct LossScale {
  float scale = 65536;
  std::uint32_t good_steps = 0;  // in a row, since it changed
};

}  // namespace dp
