#include "trainer_options.h"

#include <dp/error.h>
#include <dp/models.h>
#include <algorithm>
#include <ctime>
#include <filesystem>

#include "command.h"

namespace dp_train {
namespace {

void check_name(const std::string& name) {
  const bool good = !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
                    dp::printable(name) == name;
  if (!good) usage("--experiment '" + name + "' is not a plain name; leave out slashes and control characters");
}

void check(const Command& command) {
  const dp::TrainerOptions& options = command.trainer;
  if (command.evaluate && options.init.empty() && options.resume.empty())
    usage("--evaluate requires weights; give --init FILE or --resume PATH");
  if (command.classes_from != "checkpoint" && options.init.empty() && options.resume.empty())
    usage("--classes-from " + command.classes_from + " requires weights; give --init FILE or --resume PATH");
  if (command.experiment) check_name(*command.experiment);
  if (command.evaluate && !options.trace_file.empty()) usage("--trace records training steps; remove --evaluate");
  if (command.evaluate && options.profile) usage("--profile measures training steps; remove --evaluate");
}

// A resumed run may have other devices. A recorded split that does not fit them is replaced by equal shares.
void drop_unfit_split(dp::TrainerOptions& options) {
  dp::DataParallelOptions& parallel = options.parallel;
  const bool whole = parallel.process_group || parallel.logical_shards > 0 || parallel.pipeline.stages > 1;
  if (whole || parallel.split_weights.size() != parallel.devices.size()) parallel.split_weights.clear();
  if (whole || parallel.deterministic) options.measure_split = false;
}

}  // namespace

void check_resume(const Command& command) {
  const dp::TrainerOptions& options = command.trainer;
  if (!options.init.empty() && !options.resume.empty() && options.resume != "auto")
    usage("--init and --resume PATH exclude each other; give one");
  if (options.resume == "auto" && !command.output_dir && !command.experiment)
    usage("--resume auto requires the run's folder; give it with --output-dir");
}

dp::TrainerOptions trainer_options(const Command& command, const std::vector<dp::Device>& devices,
                                   const std::shared_ptr<dp::ProcessGroup>& group) {
  check(command);
  dp::TrainerOptions options = command.trainer;
  options.classes_by_position = command.classes_from == "position";
  const std::int64_t replicas =
      group ? group->size() : static_cast<std::int64_t>(devices.size()) / options.parallel.pipeline.stages;
  if (command.batch_size_per_gpu) options.batch_size = *command.batch_size_per_gpu * replicas;
  if (command.lr_scale == "linear") {
    const auto reference = static_cast<float>(dp::models::find(command.model).recipe.batch_size);
    dp::learning_rate(options.optimizer) *= static_cast<float>(options.batch_size) / reference;
  }
  options.parallel.devices = devices;
  options.parallel.process_group = group;
  options.metrics = dp::metrics::registry();
  const bool configured = std::ranges::any_of(command.configured, [](const auto& o) { return o.name == "split"; });
  if (!configured && !command.given.contains("split")) drop_unfit_split(options);
  if (command.evaluate || command.print_plan || command.estimate_memory) options.measure_split = false;
  return options;
}

std::string without_effect(const Command& command, dp::DeviceKind kind) {
  std::string options;
  int count = 0;
  for (const auto& [name, only] : command.given_for_one_kind)
    if (only != kind) options += (count++ == 0 ? "--" : ", --") + name;
  if (count == 0) return options;
  return options + (count == 1 ? " has" : " have") + " no effect on " +
         (kind == dp::DeviceKind::cuda ? "GPUs" : "the CPU");
}

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
  const bool file = command.model.ends_with(".onnx");
  return new_folder(file ? fs::path(command.model).stem().string() : command.model);
}

}  // namespace dp_train
