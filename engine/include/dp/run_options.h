// The options of a training run, and what a run records of them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "dp/option_table.h"
#include "dp/trainer.h"

namespace dp {

// One row for each option of TrainerOptions, those of its parallel, optimizer and schedule members included. Not in
// the table: devices, process_group, pin_threads, loss_scale, output_dir, stop, finish, unsaved, record, program,
// given_by, classes_by_position, and parameter groups other than those of --freeze, --lr-factor and
// --no-decay-norm-bias.
const OptionTable<TrainerOptions>& run_options();
// Those of its parallel member. Devices and process_group have no row.
const OptionTable<DataParallelOptions>& parallel_option_table();
inline constexpr const char* kAugmentationGroup = "Augmentation";  // the heading of TrainerOptions::augmentation

// An option as a command line would give it; parse_option() reads the texts.
struct RecordedOption {
  std::string name;
  std::vector<std::string> texts;
};

// The options recorded in the checkpoint from which a run would continue (TrainerOptions::resume and output_dir), as
// JSON. Empty if `resume` is empty, or "auto" and there is no checkpoint yet. Finishes or removes what a killed run
// left unfinished. Error(data) if the checkpoint cannot be read.
std::string resumed_config(const std::string& resume, const std::string& output_dir);

// The class names that the weights of TrainerOptions::resume, or else of `init`, were trained with; empty if they
// record none. Nullopt without such weights. For with_classes(). Error(data) if they cannot be read.
std::optional<std::vector<std::string>> recorded_classes(const TrainerOptions& options);

// The options in such a JSON object, without those that a continued run does not repeat: --init, and choices that were
// automatic. Error(data) if it is not an object.
std::vector<RecordedOption> recorded_options(const std::string& config);

// Writes the options as TOML, as config.toml in a run folder. Error(io)
void save_config(const std::string& file, const std::string& model, const TrainerOptions& options);

}  // namespace dp
