// Creates, locks and cleans up the run folder.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/base/files.h"
#include "engine/train/record/event_file.h"
#include "engine/train/record/prometheus.h"

namespace dp {

// Files and folders that a run created, removed again if the run does not begin.
// The destructor removes the recorded files and empty folders in reverse order, unless keep() was called.
class MadePaths {
 public:
  MadePaths() = default;
  ~MadePaths();
  MadePaths(const MadePaths&) = delete;
  MadePaths& operator=(const MadePaths&) = delete;

  // Creates the folder and its parents, and records those that did not exist. They survive a power loss.
  // Returns errno on failure, else 0.
  int make_folders(const std::string& path);
  void note_unless_there(const std::string& file);  // call it before writing the file
  void keep() { paths_.clear(); }

 private:
  std::vector<std::string> paths_;
};

// Tries to lock a run folder and holds the lock until destroyed; see held(). Removes the lock file if it created it.
class FolderLock {
 public:
  explicit FolderLock(const std::string& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  bool held() const { return fd_ >= 0; }
  int error() const { return error_; }  // errno if not held; EWOULDBLOCK: another run holds it

 private:
  std::string path_;
  int fd_ = -1;
  int error_ = 0;
  bool made_ = false;
};

// The process that holds the lock of a run folder, by the kernel's list; nullopt: none on this host. Takes no lock,
// which could stop a run that starts at this moment.
std::optional<int> writer_of(const std::string& folder);

// The folder of one run. Owns its lock and the metrics file. Writes nothing if the path is empty.
class RunFolder {
 public:
  // Creates and locks the folder. Error(io) if that fails, Error(usage) if another run holds the lock. What this
  // created is removed on destruction, unless begin() succeeded. own_metrics: names of the program's own metrics.
  explicit RunFolder(const std::string& path, std::vector<std::string> own_metrics = {});
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  bool writes() const { return !path_.empty(); }
  const std::string& path() const { return path_; }
  std::string checkpoint(const std::string& name) const { return path_ + "/checkpoints/" + name; }
  bool has_checkpoints() const;
  bool owns(const std::string& checkpoint_folder) const;  // whether it is in this run's checkpoints/

  // A warning if the disk has room for fewer than two further checkpoints of `bytes` each; otherwise empty.
  std::string space_warning(std::size_t bytes) const;
  void keep_newest(int count) const;  // removes the checkpoints step-N except the `count` with the largest N

  // Sets checkpoints aside that are newer than `continued_from`. Writes config.toml, or the next config.<N>.toml unless
  // the latest has the same text but for comments. Removes an old summary.json and opens metrics.jsonl. A new run
  // clears metrics.jsonl. A continued run truncates it after the last complete line of a step up to `continued_from`.
  // Unless it `adds` records, there is no new event file.
  void begin(const std::string& config_toml, std::optional<std::int64_t> continued_from, bool adds = true);
  // Whether metrics.jsonl has an evaluation of the weights (false) and of their average (true) at this step.
  std::set<bool> evaluated_at(std::int64_t step) const;
  // Writes a line of metrics.jsonl and of metrics.csv, an event and metrics.prom, without a sync. Error(io)
  void append_metrics(const nlohmann::ordered_json& record);
  void note_checkpoint();  // writes to metrics.prom that one is complete now. Error(io)
  EventFile& events() { return events_; }
  double seconds_train() const;  // of the last line of metrics.jsonl that has it; 0: none

 private:
  std::string config_file(const std::string& text) const;

  std::string path_;
  std::vector<std::string> own_metrics_;
  MadePaths made_;
  std::optional<FolderLock> lock_;  // destroyed before made_ removes the folder
  AppendFile metrics_, table_;
  EventFile events_;
  PrometheusFile prometheus_;
};

}  // namespace dp
