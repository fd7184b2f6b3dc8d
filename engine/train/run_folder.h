// The folder of one run: locked while the run lives.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "engine/base/file_handle.h"
#include "engine/base/made_paths.h"

namespace dp {

// Holds the lock of a run folder until destroyed, when it could be taken. A lock file that it made goes with it.
class FolderLock {
 public:
  explicit FolderLock(const std::string& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  bool held() const { return fd_ >= 0; }
  int error() const { return error_; }  // why it is not held; EWOULDBLOCK: another run holds it

 private:
  std::string path_;
  int fd_ = -1;
  int error_ = 0;
  bool made_ = false;
};

// Owns the lock and the metrics file. An empty path makes a folder that writes nothing.
class RunFolder {
 public:
  // Makes the folder and locks it. Error(io) when that fails, Error(usage) when another run holds it. What is made here
  // goes again at the end, unless begin() succeeded.
  explicit RunFolder(const std::string& path);
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  bool writes() const { return !path_.empty(); }
  const std::string& path() const { return path_; }
  std::string checkpoint(const std::string& name) const { return path_ + "/checkpoints/" + name; }
  bool has_checkpoints() const;
  bool owns(const std::string& checkpoint_folder) const;  // whether it lies in this run's checkpoints/

  void keep_newest(int count) const;  // of the checkpoints named step-N, by N

  // Sets checkpoints aside that are newer than `continued_from`. Writes config.toml, removes an old summary.json, opens metrics.jsonl: empty, or, when a run goes on, behind its
  // last whole line of a step up to `continued_from`.
  void begin(const std::string& config_toml, std::optional<std::int64_t> continued_from);
  void append_metrics(const nlohmann::ordered_json& record);  // one line, handed to the kernel. Error(io)

 private:
  std::string path_;
  MadePaths made_;
  std::optional<FolderLock> lock_;  // goes before the folder that it lies in
  int metrics_ = -1;
};

}  // namespace dp
