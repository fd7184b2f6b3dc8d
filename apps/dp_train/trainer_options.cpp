#include "trainer_options.h"

#include <dp/error.h>
#include <dp/models.h>
#include <algorithm>

#include "usage.h"

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

}  // namespace dp_train
