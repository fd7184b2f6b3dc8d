// What state.json and the metadata of the weights record: the data set's classes and fingerprints, and the training
// progress.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "dp/checkpoint.h"
#include "engine/checkpoint/safetensors.h"

namespace dp {

// Keys of the metadata of weights: a JSON list of names, and two JSON objects.
inline constexpr const char* kClassesKey = "dp.classes";
inline constexpr const char* kModelKey = "dp.model";
inline constexpr const char* kPreprocessingKey = "dp.preprocessing";

nlohmann::ordered_json to_json(const DataIdentity& data);
// Error(data) with `path` for fields that are missing or of another type.
DataIdentity read_data_identity(const nlohmann::json& json, const std::string& path);

// The class names in the metadata of a weights file. Empty if it has no such entry.
std::vector<std::string> classes_in(const std::map<std::string, std::string>& metadata, const std::string& path);

// The metadata of weights. A model of more than 512 KiB of JSON is left out.
std::map<std::string, std::string> metadata_of(const std::optional<Model>& model,
                                               const std::vector<std::string>& classes,
                                               const std::optional<Preprocessing>& preprocessing);
// The model and the preprocessing in the metadata. Nullopt if it has no such entry. Error(data)
std::optional<Model> model_in(const std::map<std::string, std::string>& metadata, const std::string& path);
std::optional<Preprocessing> preprocessing_in(const std::map<std::string, std::string>& metadata,
                                              const std::string& path);

// state.json: the training progress of a checkpoint.

std::string to_json(const TrainState& state);     // Error(usage) if it could not be read back
TrainState read_train_state(ByteSource& source);  // Error(data)

}  // namespace dp
