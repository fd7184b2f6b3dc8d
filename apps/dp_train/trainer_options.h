// Completes the trainer's options, and chooses the folder of the run.
#pragma once

#include <dp/process_group.h>
#include <dp/trainer.h>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "command.h"

namespace dp_train {

// dp::Error(usage) if --resume contradicts another option.
void check_resume(const Command& command);

// The options of the run on these devices, or of one rank of `group`. dp::Error(usage) for options that contradict
// each other.
dp::TrainerOptions trainer_options(const Command& command, const std::vector<dp::Device>& devices,
                                   const std::shared_ptr<dp::ProcessGroup>& group);

// Warns about given options that have no effect on this kind of device. Empty if there is none.
std::string without_effect(const Command& command, dp::DeviceKind kind);

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
