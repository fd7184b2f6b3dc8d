// The options of a training run.
#pragma once

#include "dp/option_table.h"
#include "dp/trainer.h"

namespace dp {

// One row for each option of TrainerOptions, those of its parallel, optimizer and schedule members included. Not in
// the table: devices, process_group, pin_threads, loss_scale, output_dir, stop, unsaved, and parameter groups other
// than those of --freeze and --no-decay-norm-bias.
const OptionTable<TrainerOptions>& run_options();

}  // namespace dp
