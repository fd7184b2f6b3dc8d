// The timeline and the times of layers that the tracers recorded, and the lower bound of a step's time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dp/data_parallel.h"
#include "engine/parallel/model_setup.h"
#include "engine/parallel/replica_set.h"

namespace dp::engine {

// See DataParallel's functions of the same names. write_trace and layer_times: Error(usage) without tracers.
std::int64_t write_trace(ReplicaSet& team, const ModelSetup& setup, const std::vector<std::string>& device_names,
                         const std::string& file);
std::vector<LayerTime> layer_times(ReplicaSet& team, const ModelSetup& setup);
double step_floor(ReplicaSet& team, const ModelSetup& setup, std::int64_t batch);

}  // namespace dp::engine
