// The optimizers that tests try.
#pragma once

#include <vector>

#include "engine/optimizer/optimizer.h"

namespace dp::test {

// Every optimizer, with options that need state.
inline std::vector<Optimizer> optimizers_with_state() {
  std::vector<Optimizer> all = engine::every_optimizer();
  for (Optimizer& each : all) learning_rate(each) = 0.003f;
  all.front() = Sgd{.lr = 0.05f, .momentum = 0.9f, .weight_decay = 1e-3f};
  return all;
}

}  // namespace dp::test
