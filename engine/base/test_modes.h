// Ways to run the engine that only tests use. Read when an engine is made.
#pragma once

#include <cstdint>

#include "kernels/backend.h"

namespace dp::engine {

struct TestModes {
  bool threaded_streams = false;  // see kernels::ContextOptions
  std::uint64_t delay_seed = 0;
  bool discrete_memory = false;
  kernels::NormFusion norm_fusion = kernels::NormFusion::measured;  // ...
  bool tune_small_networks = false;  // buckets are measured for networks, too, that are one anyway
};

inline TestModes& test_modes() {
  static TestModes modes;
  return modes;
}

}  // namespace dp::engine
