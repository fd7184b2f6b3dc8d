// Engine modes for tests only. Read when an engine is created.
#pragma once

#include <cstdint>
#include <functional>

#include "engine/base/time_source.h"
#include "kernels/device/backend.h"

namespace dp::engine {

struct TestModes {
  bool threaded_streams = false;  // see kernels::ContextOptions
  std::uint64_t delay_seed = 0;
  bool discrete_memory = false;
  kernels::NormFusion norm_fusion = kernels::NormFusion::measured;  // see kernels::ContextOptions
  std::function<void()> after_abort{};  // called by the watchdog, which then gives the call a minute to end
  TimeSource* time = &real_time();      // of watchdogs, process groups, stalls of DP_FAIL, measured rates and layers
  bool tune_small_networks = false;     // also tunes bucket sizes of networks that fit into one bucket
};

inline TestModes& test_modes() {
  static TestModes modes;
  return modes;
}

}  // namespace dp::engine
