// The options of a run as a record: config.toml in its folder, JSON in its checkpoints. Keys are the names of the
// command-line options.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "dp/trainer.h"

namespace dp {

nlohmann::ordered_json run_config(const std::string& model, const TrainerOptions& options);  // one flat object
std::string to_toml(const nlohmann::ordered_json& flat);  // strings, booleans, numbers and arrays of them

}  // namespace dp
