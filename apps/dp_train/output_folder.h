// The folder of a run.
#pragma once

#include <string>
#include <utility>

#include "command.h"

namespace dp_train {

// The run's folder. Empty if the run writes none. The destructor removes folders that were created here if they are
// still empty.
class OutputFolder {
 public:
  explicit OutputFolder(std::string named) : path_(std::move(named)) {}
  OutputFolder(std::string made, bool made_runs) : path_(std::move(made)), made_(true), made_runs_(made_runs) {}
  ~OutputFolder();
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  bool made_ = false, made_runs_ = false;
};

// The folder that --output-dir and --experiment name; empty without them.
std::string named_folder(const Command& command);

// The given folder, else the resumed run's, else a new one under runs/. Without a given folder, --dry-run, --evaluate
// and --print-plan have none.
OutputFolder output_folder(const Command& command);

}  // namespace dp_train
