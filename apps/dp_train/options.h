// Converts the command line to the trainer's options.
#pragma once

#include <dp/models.h>
#include <dp/process_group.h>
#include <dp/trainer.h>
#include <memory>
#include <string>
#include <utility>

#include "arguments.h"

namespace dp_train {

// The data set's name: as given, or the model's default.
std::string dataset_of(const Arguments& arguments, const dp::models::Recipe& recipe);

// Fills unset options from the recipe and the data set. dp::Error(usage) for flags that contradict each other.
dp::TrainerOptions trainer_options(const Arguments& arguments, const dp::models::Recipe& recipe,
                                   const std::vector<dp::Device>& devices,
                                   const std::shared_ptr<dp::ProcessGroup>& group);

// Warns about flags that have no effect on this kind of device. Empty if every given flag has an effect.
std::string without_effect(const Arguments& arguments, dp::DeviceKind kind);

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

// The given folder, else the resumed run's, else a new one under runs/. Without a given folder, --dry-run, --evaluate
// and --print-plan have none.
OutputFolder output_folder(const Arguments& arguments);

}  // namespace dp_train
