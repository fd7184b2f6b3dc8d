// Files of a run that only grow: text files, and the event file of TensorBoard.
#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace dp {

// A file to which whole records are appended.
class AppendFile {
 public:
  enum class Open { existing_or_new, new_only };

  AppendFile() = default;  // append() does nothing
  // Does not follow a symbolic link. Error(io).
  AppendFile(const std::string& path, Open how);
  ~AppendFile();
  AppendFile(AppendFile&& other) noexcept { *this = std::move(other); }
  AppendFile& operator=(AppendFile&& other) noexcept;

  void keep(std::size_t bytes);          // truncates; the next record follows. Error(io)
  void append(const std::string& text);  // all of it or nothing, without a sync. Error(io)

 private:
  std::string path_;
  int fd_ = -1;
};

// An event file for TensorBoard (TFRecord frames around tensorflow.Event messages; docs/reference/formats.md).

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
