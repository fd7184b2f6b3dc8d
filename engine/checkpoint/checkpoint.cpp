// Reads and writes checkpoints and their state.json.
#include "engine/checkpoint/checkpoint.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <span>

#include "dp/checkpoint.h"
#include "dp/error.h"
#include "engine/base/files.h"
#include "engine/base/sha256.h"
#include "engine/checkpoint/checkpoint_folder.h"
#include "engine/checkpoint/safetensors.h"

namespace dp {
namespace {

const nlohmann::json& list_in(const nlohmann::json& json, const char* key, const std::string& path) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_array()) throw_data(path, std::string("'") + key + "' is not a list");
  return *found;
}

std::vector<std::string> names_in(const nlohmann::json& json, const char* key, const std::string& path) {
  std::vector<std::string> names;
  for (const nlohmann::json& name : list_in(json, key, path)) {
    if (!name.is_string()) throw_data(path, std::string("'") + key + "' has an entry that is not a string");
    names.push_back(name.get<std::string>());
  }
  return names;
}

std::vector<std::int64_t> counts_in(const nlohmann::json& json, const char* key, const std::string& path) {
  constexpr std::uint64_t kLimit = std::uint64_t{1} << 53;
  std::vector<std::int64_t> counts;
  for (const nlohmann::json& count : list_in(json, key, path)) {
    if (!count.is_number_unsigned() || count.get<std::uint64_t>() >= kLimit)
      throw_data(path, std::string("'") + key + "' has an entry that is not a count below 2^53");
    counts.push_back(count.get<std::int64_t>());
  }
  return counts;
}

std::string text_in(const nlohmann::json& json, const char* key, const std::string& path) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_string()) throw_data(path, std::string("'") + key + "' is not a string");
  return found->get<std::string>();
}

}  // namespace

nlohmann::ordered_json to_json(const DataIdentity& data) {
  return {{"classes", data.classes},
          {"train_counts", data.train_counts},
          {"test_counts", data.test_counts},
          {"train_fingerprint", data.train_fingerprint},
          {"test_fingerprint", data.test_fingerprint}};
}

DataIdentity read_data_identity(const nlohmann::json& json, const std::string& path) {
  if (!json.is_object()) throw_data(path, "is not a JSON object");
  return {names_in(json, "classes", path), counts_in(json, "train_counts", path), counts_in(json, "test_counts", path),
          text_in(json, "train_fingerprint", path), text_in(json, "test_fingerprint", path)};
}

std::vector<std::string> classes_in(const std::map<std::string, std::string>& metadata, const std::string& path) {
  const auto found = metadata.find(kClassesKey);
  if (found == metadata.end()) return {};
  const std::string where = path + ": __metadata__";
  // parse_small_json() reads objects.
  return names_in(parse_small_json("{\"classes\":" + found->second + "}", where), "classes", where);
}

namespace {

constexpr std::uint64_t kLongestState = 16 << 20;              // names of classes take up to 4 MiB
constexpr std::uint64_t kCountLimit = std::uint64_t{1} << 53;  // exact in every JSON reader; far from overflow

class Fields {
 public:
  explicit Fields(ByteSource& source) : path_(source.name()), json_(read_small_json(source, kLongestState)) {}

  std::string text(const char* key) const {
    const auto& value = at(key);
    if (!value.is_string()) wrong(key, "a string");
    return value.get<std::string>();
  }
  std::uint64_t natural(const char* key) const {
    const auto& value = at(key);
    if (!value.is_number_unsigned()) wrong(key, "a whole number of at least 0");
    return value.get<std::uint64_t>();
  }
  std::int64_t count(const char* key) const {
    const std::uint64_t value = natural(key);
    if (value >= kCountLimit) wrong(key, "below 2^53");
    return static_cast<std::int64_t>(value);
  }
  std::uint32_t small(const char* key) const {
    const std::uint64_t value = natural(key);
    if (value > UINT32_MAX) wrong(key, "below 2^32");
    return static_cast<std::uint32_t>(value);
  }
  float scale(const char* key) const {
    const auto value = static_cast<float>(number(key));
    if (!std::isnormal(value) || value < 0) wrong(key, "a positive float32 number");
    return value;
  }
  std::string json_text(const char* key) const {
    std::string value = text(key);
    if (!value.empty()) parse_small_json(value, path_ + ": '" + key + "'");
    return value;
  }
  DataIdentity data(const char* key) const { return read_data_identity(at(key), path_ + ": '" + key + "'"); }
  bool has(const char* key) const { return json_.contains(key); }
  double number(const char* key) const {
    const auto& value = at(key);
    if (!value.is_number()) wrong(key, "a number");
    return value.get<double>();
  }

 private:
  const nlohmann::json& at(const char* key) const {
    const auto found = json_.find(key);
    if (found == json_.end()) throw_data(path_, std::string("has no '") + key + "'");
    return *found;
  }
  [[noreturn]] void wrong(const char* key, const char* due) const {
    throw_data(path_, std::string("'") + key + "' is not " + due);
  }

  std::string path_;
  nlohmann::json json_;
};

}  // namespace

std::string to_json(const TrainState& state) {
  nlohmann::ordered_json json = {
      {"model", state.model},
      {"dataset", state.dataset},
      {"step", state.step},
      {"skipped", state.skipped},
      {"epoch", state.epoch},
      {"batch_in_epoch", state.batch_in_epoch},
      {"seed", state.seed},
      {"global_batch", state.global_batch},
      {"best_top1", std::isfinite(state.best_top1) ? state.best_top1 : -1.0},
      {"since_best", state.since_best},
      {"config", state.config},
  };
  if (state.best_loss) json["best_loss"] = *state.best_loss;
  if (state.plateau != Plateau()) {
    json["plateau_factor"] = state.plateau.factor;
    json["plateau_bad"] = state.plateau.bad;
    if (state.plateau.best) json["plateau_best"] = *state.plateau.best;
  }
  if (state.loss_scale) {
    json["loss_scale"] = static_cast<double>(state.loss_scale->scale);
    json["loss_scale_steps"] = state.loss_scale->good_steps;
  }
  if (state.data) json["data"] = to_json(*state.data);
  const std::string text = json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  try {  // rejects a state that could not be read back
    MemorySource source("the training state", std::as_bytes(std::span(text)));
    read_train_state(source);
  } catch (const Error& error) {
    throw Error(ErrorCode::usage, error.what());
  }
  return text;
}

TrainState read_train_state(ByteSource& source) {
  const Fields fields(source);
  TrainState state;
  state.model = fields.text("model");
  state.dataset = fields.text("dataset");
  state.step = fields.count("step");
  if (fields.has("skipped")) state.skipped = fields.count("skipped");
  state.epoch = fields.count("epoch");
  state.batch_in_epoch = fields.count("batch_in_epoch");
  state.seed = fields.natural("seed");
  state.global_batch = fields.count("global_batch");
  state.best_top1 = fields.number("best_top1");
  if (fields.has("best_loss")) state.best_loss = fields.number("best_loss");
  if (fields.has("plateau_factor")) state.plateau.factor = fields.number("plateau_factor");
  if (fields.has("plateau_bad")) state.plateau.bad = fields.count("plateau_bad");
  if (fields.has("plateau_best")) state.plateau.best = fields.number("plateau_best");
  if (fields.has("since_best")) state.since_best = fields.count("since_best");
  state.config = fields.json_text("config");
  if (fields.has("loss_scale"))
    state.loss_scale = LossScale{fields.scale("loss_scale"), fields.small("loss_scale_steps")};
  if (fields.has("data")) state.data = fields.data("data");
  return state;
}

// Input of the digest, per tensor in order of name: name, zero byte, type, zero byte, shape, zero byte, data. Type and
// shape are formatted by to_string().
std::string weights_sha256(const NamedTensors& tensors) {
  std::vector<const NamedTensors::value_type*> sorted;
  for (const auto& tensor : tensors) sorted.push_back(&tensor);
  std::sort(sorted.begin(), sorted.end(), [](const auto* a, const auto* b) { return a->first < b->first; });
  Sha256 digest;
  for (const auto* entry : sorted) {
    const auto& [name, tensor] = *entry;
    if (tensor.empty() || !tensor.storage()->host_accessible())
      throw Error(ErrorCode::usage, "tensor '" + excerpt(name) + "' has no host memory; copy it there first");
    digest.add_field(name);
    digest.add_field(to_string(tensor.dtype()));
    digest.add_field(to_string(tensor.shape()));
    digest.add(tensor.raw(), tensor.bytes());
  }
  return digest.hexadecimal();
}

// Saves and loads checkpoint folders.

namespace {

// Saving deletes what is at `path`. Throws unless it is nothing, a link, an empty folder or a checkpoint (complete or
// damaged).
void refuse_anything_else(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const fs::file_status status = fs::symlink_status(path, ignored);
  if (!fs::exists(status) || fs::is_symlink(status)) return;  // replaces only the link
  if (fs::is_directory(status)) {
    if (fs::is_empty(path, ignored)) return;
    for (const char* name : {kManifestFile, kModelFile, kOptimizerFile, kAverageFile, kStateFile})
      if (fs::exists(fs::symlink_status(path + "/" + name, ignored))) return;
  }
  throw Error(ErrorCode::usage, excerpt(path) + " exists and is not a checkpoint; choose another folder");
}

template <typename Write>
FileRecord write_file(const std::string& folder, const char* name, const Write& write) {
  FileWriter file(folder + "/" + name);
  write(file);
  file.finish();
  return {file.bytes(), file.crc()};
}

std::map<std::string, std::string> metadata_of_weights(const Checkpoint& checkpoint) {
  const TrainState& state = checkpoint.state;
  std::vector<std::string> classes;
  if (state.data) classes = state.data->classes;
  return metadata_of(checkpoint.model, classes, checkpoint.preprocessing);
}

std::map<std::string, std::string> metadata_of(const OptimizerState& state) {
  std::map<std::string, std::string> metadata{{"format", "pt"}};
  if (state.optimizer.empty()) return metadata;
  metadata["optimizer"] = state.optimizer;
  metadata["updates"] = std::to_string(state.updates);
  return metadata;
}

// The number of updates that the metadata of a file give.
std::int64_t read_updates(const char* file, const std::string& text) {
  std::int64_t updates = 0;
  const char* const end = text.data() + text.size();
  if (const auto read = std::from_chars(text.data(), end, updates);
      read.ec != std::errc() || read.ptr != end || updates < 0)
    throw Error(ErrorCode::data, std::string(file) + ": updates is '" + excerpt(text) + "', which is not a count");
  return updates;
}

OptimizerState read_optimizer(FileSource& source, const TrainState& run) {
  std::map<std::string, std::string> metadata;
  OptimizerState state;
  state.tensors = read_safetensors(source, &metadata);
  if (const auto name = metadata.find("optimizer"); name != metadata.end()) {
    state.optimizer = name->second;
    state.updates = read_updates(kOptimizerFile, metadata["updates"]);
  } else if (!state.tensors.empty()) {  // an older file: the momenta of SGD under the weights' names
    state.optimizer = "sgd";
    state.updates = run.step - run.skipped;
    for (auto& [tensor, values] : state.tensors) tensor.insert(0, "momentum_buffer.");
  }
  return state;
}

void write_folder(const std::string& folder, const Checkpoint& checkpoint) {
  if (file_ops().mkdir(folder.c_str(), 0777) != 0) throw_io_errno(folder, "creating the folder", errno);
  Manifest manifest;
  std::map<std::string, std::string> metadata = metadata_of_weights(checkpoint);
  manifest[kModelFile] =
      write_file(folder, kModelFile, [&](FileWriter& file) { write_tensors(file, checkpoint.weights, metadata); });
  manifest[kOptimizerFile] = write_file(folder, kOptimizerFile, [&](FileWriter& file) {
    write_tensors(file, checkpoint.optimizer.tensors, metadata_of(checkpoint.optimizer));
  });
  if (!checkpoint.average.empty()) {
    metadata["updates"] = std::to_string(checkpoint.average_updates);
    manifest[kAverageFile] =
        write_file(folder, kAverageFile, [&](FileWriter& file) { write_tensors(file, checkpoint.average, metadata); });
  }
  manifest[kStateFile] =
      write_file(folder, kStateFile, [&](FileWriter& file) { file.write(to_json(checkpoint.state)); });
  write_file(folder, kManifestFile, [&](FileWriter& file) { file.write(to_json(manifest)); });
  sync_folder(folder);
}

}  // namespace

void save_checkpoint(const std::string& folder, const Checkpoint& checkpoint) {
  const PathParts target = split_path(folder);
  refuse_anything_else(target.path());
  const std::string temporary = temporary_sibling(target, "tmp");
  std::string old;
  try {
    write_folder(temporary, checkpoint);
    old = put_in_place(temporary, target);
  } catch (...) {
    remove_tree(temporary);
    throw;
  }
  if (!old.empty()) remove_tree(old);  // if this fails, find_checkpoint deletes the old one later
}

Checkpoint load_checkpoint(const std::string& folder) {
  VerifiedCheckpoint files = open_checkpoint(folder, Links::follow);
  Checkpoint checkpoint;
  checkpoint.state = read_train_state(files.state);
  std::map<std::string, std::string> metadata;
  checkpoint.weights = read_safetensors(files.model, &metadata);
  checkpoint.model = model_in(metadata, kModelFile);
  checkpoint.preprocessing = preprocessing_in(metadata, kModelFile);
  checkpoint.optimizer = read_optimizer(files.optimizer, checkpoint.state);
  if (files.average) {
    checkpoint.average = read_safetensors(*files.average, &metadata);
    const auto updates = metadata.find("updates");
    checkpoint.average_updates =
        updates != metadata.end() ? read_updates(kAverageFile, updates->second) : checkpoint.state.step;
  }
  return checkpoint;
}

}  // namespace dp
