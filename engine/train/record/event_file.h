// An event file for TensorBoard (TFRecord frames around tensorflow.Event messages; docs/reference/formats.md).
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/train/record/append_file.h"

namespace dp {

using Scalars = std::vector<std::pair<std::string, double>>;  // tags and values

// The frame of one message: length, message, and a checksum of each.
std::string event_frame(const std::string& message);
// tensorflow.Event with one scalar for each value.
std::string scalar_event(double wall_time, std::int64_t step, const Scalars& scalars);

// The scalars of a line of metrics.jsonl: "Train/loss", "Test/acc1", ...
Scalars scalars_of(const nlohmann::ordered_json& record);

class EventFile {
 public:
  EventFile() = default;  // writes nothing
  // Makes the file. `resumed`: the step from which the run continues; TensorBoard drops later ones of earlier files.
  // Error(io).
  EventFile(const std::string& path, std::optional<std::int64_t> resumed);
  // The name of a new file in the run's folder, after those of all event files there: readers go by the names.
  static std::string new_name(const std::string& folder);

  void add(std::int64_t step, const Scalars& scalars);     // Error(io)
  void add_options(const nlohmann::ordered_json& config);  // for the HPARAMS tab. Error(io)

 private:
  AppendFile file_;
};

}  // namespace dp
