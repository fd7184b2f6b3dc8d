// A trained network with all that its use requires: layers, weights, class names, and how images are prepared.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dp/checkpoint.h"
#include "dp/dataset.h"
#include "dp/model.h"

namespace dp {

struct TrainedModel {
  Model model;
  NamedTensors weights;                          // parameters and buffers under the model's names
  std::vector<std::string> classes{};            // names of the outputs; empty: unknown
  std::optional<Preprocessing> preprocessing{};  // nullopt: unknown
  std::string config{};                          // TrainState::config of its checkpoint; empty: unknown
};

// The layers of a model as JSON, without weights; model_from_json() makes an equal model. docs/reference/formats.md has
// the grammar. Error(data) if the text is not such an object, or if the layers do not fit together.
std::string to_json(const Model& model);
Model model_from_json(std::string_view json);

// Which weights of a checkpoint are used. automatic: their moving average, if there is one.
enum class WeightsOf { automatic, last_step, average };

// Reads a run folder (its checkpoint `best`, or else `last`), a checkpoint folder, or a file with weights that dp
// saved. Error(data) if it cannot be read, or if it does not describe its network: checkpoints of earlier versions do
// not.
TrainedModel read_trained_model(const std::string& path, WeightsOf which = WeightsOf::automatic);

}  // namespace dp
