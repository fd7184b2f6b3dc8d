// dp_train estimate-memory: what a run would take, and the largest batch that fits.
#pragma once

#include <dp/data_parallel.h>
#include <dp/models.h>

#include "arguments.h"

namespace dp_train {

// Prints a line for each replica. The images' shape is that of the data set's name; no file is read.
// dp::Error(usage) for an unknown data set.
void estimate_memory(const Arguments& arguments, const dp::models::Entry& entry, const std::string& dataset,
                     std::int64_t batch, const dp::DataParallelOptions& options);

}  // namespace dp_train
