#include "output_folder.h"

#include <dp/error.h>
#include <ctime>
#include <filesystem>

#include "usage.h"

namespace dp_train {
namespace {

namespace fs = std::filesystem;

OutputFolder new_folder(const std::string& model) {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::localtime_r(&now, &parts);
  char time[32];
  std::strftime(time, sizeof time, "%Y%m%d-%H%M%S", &parts);
  const std::string base = std::string("runs/") + time + "_" + model;
  std::error_code error;
  const bool made_runs = fs::create_directory("runs", error);
  for (int number = 1; number < 1000 && !error; ++number) {
    const std::string path = number == 1 ? base : base + "-" + std::to_string(number);
    if (fs::create_directory(path, error)) return OutputFolder(path, made_runs);
  }
  if (made_runs) {
    std::error_code ignored;
    fs::remove("runs", ignored);
  }
  throw dp::Error(dp::ErrorCode::io,
                  "cannot create the run folder '" + base + "': " + error.message() + "; choose one with --output-dir");
}

// The run folder of a checkpoint, or `resume` if it is a run folder. Empty for a checkpoint outside a run folder.
std::string folder_of_resumed(const std::string& resume) {
  std::error_code error;
  if (fs::exists(resume + "/checkpoints", error)) return resume;
  const fs::path checkpoint = fs::weakly_canonical(resume, error);
  if (error || checkpoint.parent_path().filename() != "checkpoints") return "";
  return checkpoint.parent_path().parent_path().string();
}

}  // namespace

OutputFolder::~OutputFolder() {
  std::error_code ignored;
  if (made_) fs::remove(path_, ignored);
  if (made_runs_) fs::remove("runs", ignored);
}

std::string named_folder(const Command& command) {
  if (!command.output_dir && !command.experiment) return "";
  const std::string folder = command.output_dir.value_or("runs");
  if (folder.find("://") != std::string::npos)  // may have a password, which the run would record
    usage("--output-dir '" + folder + "' is an address; give a folder");
  return command.experiment ? folder + "/" + *command.experiment : folder;
}

OutputFolder output_folder(const Command& command) {
  if (std::string folder = named_folder(command); !folder.empty()) return OutputFolder(std::move(folder));
  if (command.trainer.dry_run || command.evaluate || command.print_plan) return OutputFolder("");
  if (!command.trainer.resume.empty()) {
    const std::string folder = folder_of_resumed(command.trainer.resume);
    if (!folder.empty()) return OutputFolder(folder);
  }
  return new_folder(command.model);
}

}  // namespace dp_train
