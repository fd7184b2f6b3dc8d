// The timeline and the times of layers that the tracers recorded, and the lower bound of a step's time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dp/data_parallel.h"
#include "engine/step/model_setup.h"
#include "engine/step/team.h"

namespace dp::engine {

// See DataParallel's functions of the same names. write_trace and layer_times: Error(usage) without tracers.
std::int64_t write_trace(Team& team, const ModelSetup& setup, const std::vector<std::string>& device_names,
                         const std::string& file);
std::vector<LayerTime> layer_times(Team& team, const ModelSetup& setup);
double step_floor(Team& team, const ModelSetup& setup, std::int64_t batch);

}  // namespace dp::engine
