// What the tracers of all replicas recorded: a timeline in one file, and times of layers. Also the bound of a step.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dp/data_parallel.h"
#include "engine/parallel/model_setup.h"
#include "engine/parallel/replica_set.h"

namespace dp::engine {

// As DataParallel's functions of these names. Without tracers: Error(usage).
std::int64_t write_trace(ReplicaSet& team, const ModelSetup& setup, const std::vector<std::string>& device_names,
                         const std::string& file);
std::vector<LayerTime> layer_times(ReplicaSet& team, const ModelSetup& setup);
double step_floor(ReplicaSet& team, const ModelSetup& setup, std::int64_t batch);

}  // namespace dp::engine
