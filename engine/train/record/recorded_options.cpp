// Reads and writes the record of a run's options.
#include <algorithm>
#include <array>
#include <string_view>

#include "dp/error.h"
#include "dp/run_options.h"
#include "engine/base/atomic_text.h"
#include "engine/checkpoint/checkpoint_folder.h"
#include "engine/checkpoint/small_json.h"
#include "engine/checkpoint/train_state.h"
#include "engine/train/record/run_config.h"
#include "engine/train/restore.h"

namespace dp {
namespace {

// Keys that are no options, and options of the first start.
constexpr std::array<std::string_view, 5> kNotRepeated{"devices", "parameter-groups", "init", "init-partial",
                                                       "resolved"};
// Records without "resolved" have these as resolved, not as given.
constexpr std::array<std::string_view, 6> kResolvedOnce{"threads-per-replica", "workers", "images-on", "comm",
                                                        "bucket-mb",           "reduce"};

bool is_in(const auto& names, const std::string& name) { return std::ranges::find(names, name) != names.end(); }

std::string text_of(const nlohmann::ordered_json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

}  // namespace

std::string resumed_config(const std::string& resume, const std::string& output_dir) {
  TrainerOptions options;
  options.resume = resume, options.output_dir = output_dir;
  const std::string folder = find_resumed_folder(options, /*locked=*/false, {});
  if (folder.empty()) return "";
  try {
    VerifiedCheckpoint files = open_checkpoint(folder, Links::follow);
    const std::string config = read_train_state(files.state).config;
    return config.empty() ? "{}" : config;
  } catch (const Error& error) {
    rethrow_with_remedy(error, kAnotherCheckpoint);
  }
}

std::vector<RecordedOption> recorded_options(const std::string& config) {
  const auto json = parse_record<nlohmann::ordered_json>(config);
  if (!json.is_object()) throw Error(ErrorCode::data, "the recorded options are not a JSON object");
  std::vector<RecordedOption> options;
  for (const auto& [name, value] : json.items()) {
    if (is_in(kNotRepeated, name) || value.is_object() || value.is_null()) continue;
    if (!json.contains("resolved") && is_in(kResolvedOnce, name)) continue;
    RecordedOption option{name, {}};
    if (!value.is_array()) option.texts.push_back(text_of(value));
    for (const auto& item : value.is_array() ? value : nlohmann::ordered_json::array())
      option.texts.push_back(text_of(item));
    options.push_back(std::move(option));
  }
  return options;
}

void save_config(const std::string& file, const std::string& model, const TrainerOptions& options) {
  nlohmann::ordered_json config = run_config(model, options, options);
  config.erase("resolved");
  write_file_atomically(file, to_toml(config));
}

}  // namespace dp
