// Reads trained networks: weights, and the description of the network in the metadata of their file.
#include "dp/trained_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "dp/error.h"
#include "engine/base/files.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/checkpoint_folder.h"
#include "engine/checkpoint/safetensors.h"

namespace dp {
namespace {

constexpr std::size_t kLongestModel = std::size_t{512} << 10;  // escaped, it is shorter than any text a header may have
constexpr std::array kInterpolations = {"nearest", "bilinear", "bicubic"};

std::string text_of(const Preprocessing& preprocessing) {
  nlohmann::ordered_json json{{"mean", preprocessing.normalization.mean}, {"std", preprocessing.normalization.std}};
  if (preprocessing.resizing) {
    json["interpolation"] = kInterpolations[static_cast<std::size_t>(preprocessing.resizing->interpolation)];
    json["crop_pct"] = preprocessing.resizing->crop_pct;
  }
  return json.dump();
}

std::vector<float> numbers_in(const nlohmann::json& json, const char* key, const std::string& path) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_array()) throw_data(path, std::string("'") + key + "' is not a list");
  std::vector<float> numbers;
  for (const nlohmann::json& number : *found) {
    if (!number.is_number()) throw_data(path, std::string("'") + key + "' has an entry that is not a number");
    numbers.push_back(number.get<float>());
  }
  return numbers;
}

Resizing resizing_in(const nlohmann::json& json, const std::string& path) {
  Resizing resizing;
  const auto crop = json.find("crop_pct");
  if (crop == json.end() || !crop->is_number()) throw_data(path, "'crop_pct' is not a number");
  resizing.crop_pct = crop->get<double>();
  if (!(resizing.crop_pct >= 0.05 && resizing.crop_pct <= 1)) throw_data(path, "'crop_pct' is not in [0.05, 1]");
  const auto named = std::find(kInterpolations.begin(), kInterpolations.end(), json["interpolation"]);
  if (named == kInterpolations.end()) throw_data(path, "'interpolation' has an unknown value");
  resizing.interpolation = static_cast<Interpolation>(named - kInterpolations.begin());
  return resizing;
}

}  // namespace

std::map<std::string, std::string> metadata_of(const std::optional<Model>& model,
                                               const std::vector<std::string>& classes,
                                               const std::optional<Preprocessing>& preprocessing) {
  std::map<std::string, std::string> metadata{{"format", "pt"}};
  if (!classes.empty())
    metadata[kClassesKey] = nlohmann::json(classes).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  std::string layers = model ? to_json(*model) : "";
  if (!layers.empty() && layers.size() <= kLongestModel) metadata[kModelKey] = std::move(layers);
  if (preprocessing) metadata[kPreprocessingKey] = text_of(*preprocessing);
  return metadata;
}

std::optional<Model> model_in(const std::map<std::string, std::string>& metadata, const std::string& path) try {
  const auto found = metadata.find(kModelKey);
  return found == metadata.end() ? std::nullopt : std::optional(model_from_json(found->second));
} catch (const Error& error) {
  throw_data(path, error.what());
}

std::optional<Preprocessing> preprocessing_in(const std::map<std::string, std::string>& metadata,
                                              const std::string& path) {
  const auto found = metadata.find(kPreprocessingKey);
  if (found == metadata.end()) return std::nullopt;
  const std::string where = path + ": " + kPreprocessingKey;
  const nlohmann::json json = parse_small_json(found->second, where);
  Preprocessing preprocessing{{numbers_in(json, "mean", where), numbers_in(json, "std", where)}};
  if (json.contains("interpolation")) preprocessing.resizing = resizing_in(json, where);
  const Normalization& by = preprocessing.normalization;
  bool valid = by.mean.size() == by.std.size();
  for (const float mean : by.mean) valid = valid && std::isfinite(mean);
  for (const float deviation : by.std) valid = valid && std::isnormal(deviation) && deviation > 0;
  if (!valid) throw_data(where, "requires a finite mean and a positive deviation for each channel");
  return preprocessing;
}

namespace {

// Requires exactly the tensors of the model.
void require_equal_names(const TrainedModel& network, const std::string& path) {
  std::map<std::string_view, const Tensor*> left;
  for (const auto& [name, tensor] : network.weights) left[name] = &tensor;
  const auto take = [&](const std::string& name, const Shape& shape) {
    const auto found = left.find(name);
    if (found == left.end()) throw_data(path, "lacks the tensor '" + excerpt(name) + "' of the network it describes");
    if (found->second->shape() != shape)
      throw_data(path, "the tensor '" + excerpt(name) + "' has the shape " + to_string(found->second->shape()) +
                           ", but the network it describes has " + to_string(shape));
    left.erase(found);
  };
  for (const ParameterSpec& parameter : network.model.parameters()) take(parameter.name, parameter.shape);
  for (const BufferSpec& buffer : network.model.buffers()) take(buffer.name, buffer.shape);
  if (!left.empty())
    throw_data(path, "has a tensor '" + excerpt(std::string(left.begin()->first)) +
                         "' that the network it describes does not have");
  const auto outputs = static_cast<std::size_t>(network.model.output().numel());
  if (!network.classes.empty() && network.classes.size() != outputs)
    throw_data(path, "names " + std::to_string(network.classes.size()) + " classes, but the network has " +
                         std::to_string(outputs) + " outputs");
  if (network.preprocessing &&
      network.preprocessing->normalization.mean.size() != static_cast<std::size_t>(network.model.input()[0]))
    throw_data(path, "normalises another number of channels than the network has");
}

TrainedModel read_described(FileSource& source, const std::string& path) {
  std::map<std::string, std::string> metadata;
  NamedTensors weights = read_safetensors(source, &metadata);
  std::optional<Model> model = model_in(metadata, path);
  if (!model)
    throw_data(path, metadata.contains(kClassesKey)
                         ? "does not describe its network, because an earlier version saved it; resume the run with "
                           "this version for a step"
                         : "does not describe its network; only weights that dp saved do");
  TrainedModel network{std::move(*model), std::move(weights), classes_in(metadata, path),
                       preprocessing_in(metadata, path)};
  require_equal_names(network, path);
  return network;
}

}  // namespace

std::string checkpoint_in(const std::string& folder) {
  const auto has = [](const std::string& path) {
    std::error_code ignored;
    return std::filesystem::exists(path, ignored);
  };
  if (has(folder + "/" + kManifestFile)) return folder;
  for (const char* name : {"best", "last"})
    if (has(folder + "/checkpoints/" + name)) return folder + "/checkpoints/" + name;
  throw_data(folder, "is neither a run folder with a checkpoint `best` or `last`, nor a checkpoint");
}

TrainedModel read_trained_model(const std::string& path, WeightsOf which) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(path, ignored)) {
    FileSource file(path);
    return read_described(file, path);
  }
  const std::string folder = checkpoint_in(path);
  VerifiedCheckpoint files = open_checkpoint(folder, Links::follow);
  if (which == WeightsOf::average && !files.average)
    throw Error(ErrorCode::usage, folder + " has no moving average of the weights");
  const bool average = which != WeightsOf::last_step && files.average;
  TrainedModel network = average ? read_described(*files.average, folder + "/" + kAverageFile)
                                 : read_described(files.model, folder + "/" + kModelFile);
  network.config = read_train_state(files.state).config;
  return network;
}

}  // namespace dp
