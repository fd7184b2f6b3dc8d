// Training steps on simulated GPUs with an injected failure.
#pragma once

#include <string>

#include "cuda/simulated_gpus.h"
#include "dp/error.h"
#include "support/catch.h"
#include "support/training.h"

namespace dp::test {

// The error's text; empty without an error.
inline std::string failure_of(const DataParallelOptions& options, ErrorCode& code) {
  const Model model = small_convnet();
  try {
    DataParallel net(model, options);
    for (int step = 0; step < 3; ++step) net.train_step(random_batch(model, 8), Sgd{.lr = 0.01f, .momentum = 0.9f});
  } catch (const Error& error) {
    code = error.code();
    return error.what();
  }
  return {};
}

inline void check_nothing_left() {
  const simt::Live live = simt::live();
  CHECK(live.allocations == 0);
  CHECK(live.pinned == 0);
  CHECK(live.streams == 0);
  CHECK(live.events == 0);
  CHECK(live.graphs == 0);
}

}  // namespace dp::test
