#pragma once

#include "dp/model.h"
#include "dp/trainer.h"

namespace dp {

// Error(usage) for options that cannot work: a number out of range, or a model that does not fit the data.
void check_options(const Model& model, const DatasetPair& data, const TrainerOptions& options);

}  // namespace dp
