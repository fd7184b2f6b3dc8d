// Saves and loads checkpoint folders.
#include "dp/checkpoint.h"

#include <sys/stat.h>

#include <cerrno>
#include <charconv>
#include <filesystem>

#include "dp/error.h"
#include "engine/base/durable.h"
#include "engine/base/fault.h"
#include "engine/base/file_ops.h"
#include "engine/checkpoint/checkpoint_folder.h"
#include "engine/checkpoint/data_identity.h"
#include "engine/checkpoint/put_in_place.h"
#include "engine/checkpoint/safetensors_header.h"
#include "engine/checkpoint/safetensors_write.h"
#include "engine/checkpoint/train_state.h"

namespace dp {
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

std::map<std::string, std::string> metadata_of_weights(const TrainState& state) {
  std::map<std::string, std::string> metadata{{"format", "pt"}};
  if (state.data && !state.data->classes.empty())
    metadata[kClassesKey] =
        nlohmann::json(state.data->classes).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return metadata;
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
  std::map<std::string, std::string> metadata = metadata_of_weights(checkpoint.state);
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
  checkpoint.weights = read_safetensors(files.model);
  checkpoint.optimizer = read_optimizer(files.optimizer, checkpoint.state);
  if (files.average) {
    std::map<std::string, std::string> metadata;
    checkpoint.average = read_safetensors(*files.average, &metadata);
    const auto updates = metadata.find("updates");
    checkpoint.average_updates =
        updates != metadata.end() ? read_updates(kAverageFile, updates->second) : checkpoint.state.step;
  }
  return checkpoint;
}

}  // namespace dp
