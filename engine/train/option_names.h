// Names of option values on the command line, on the console and in config.toml.
#pragma once

#include "dp/parallel_options.h"

namespace dp {

const char* name_of(Reduce reduce);
const char* name_of(Comm comm);
const char* name_of(LossAt loss);
const char* name_of(Split split);
const char* name_of(OnNonfinite on_nonfinite);
const char* name_of(BatchNormMode mode);
const char* name_of(Amp amp);
const char* name_of(Graphs graphs);

}  // namespace dp
