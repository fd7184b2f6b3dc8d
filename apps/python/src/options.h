// Keyword arguments as options: the rows of dp::run_options(), with underscores in their names.
#pragma once

#include <dp/run_options.h>
#include <dp/trainer.h>
#include <memory>
#include <string>
#include <vector>

#include "convert.h"

namespace dp_python {

class ComputeThread;

enum class OptionsOf { data_parallel, trainer };

// The options that the keyword arguments set. These arguments are not in the table of options: devices,
// parameter_groups and own_loss; for a trainer also optimizer, schedule, output_dir, metrics, first_weights and
// classes_by_position. Functions are called through `thread`.
// Error(usage) names an argument that is unknown or has a wrong value. With `resume`, the options that the run
// recorded are the defaults.
dp::TrainerOptions options_from(OptionsOf kind, const nb::dict& arguments,
                                const std::shared_ptr<ComputeThread>& thread);

// The options of a DataParallel. `devices` may be None: the default devices.
dp::DataParallelOptions parallel_options(const nb::object& devices, const nb::kwargs& arguments,
                                         const std::shared_ptr<ComputeThread>& thread);

// A line for each option, for help().
std::string describe_options(OptionsOf kind);

}  // namespace dp_python
