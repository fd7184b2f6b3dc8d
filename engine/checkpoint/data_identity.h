// The data set's classes and fingerprints in state.json, and its classes in the metadata of the weights.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "dp/checkpoint.h"

namespace dp {

inline constexpr const char* kClassesKey = "dp.classes";  // of the metadata: a JSON list of names

nlohmann::ordered_json to_json(const DataIdentity& data);
// Error(data) with `path` for fields that are missing or of another type.
DataIdentity read_data_identity(const nlohmann::json& json, const std::string& path);

// The class names in the metadata of a weights file. Empty if it has no such entry.
std::vector<std::string> classes_in(const std::map<std::string, std::string>& metadata, const std::string& path);

}  // namespace dp
