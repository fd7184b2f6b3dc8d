// What state.json and the metadata of the weights record: the data set's classes and fingerprints, and the training
// progress.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "dp/checkpoint.h"
#include "engine/checkpoint/safetensors.h"

namespace dp {

inline constexpr const char* kClassesKey = "dp.classes";  // of the metadata: a JSON list of names

nlohmann::ordered_json to_json(const DataIdentity& data);
// Error(data) with `path` for fields that are missing or of another type.
DataIdentity read_data_identity(const nlohmann::json& json, const std::string& path);

// The class names in the metadata of a weights file. Empty if it has no such entry.
std::vector<std::string> classes_in(const std::map<std::string, std::string>& metadata, const std::string& path);

// state.json: the training progress of a checkpoint.

std::string to_json(const TrainState& state);     // Error(usage) if it could not be read back
TrainState read_train_state(ByteSource& source);  // Error(data)

}  // namespace dp
