// A log file with the outcome of each candidate of a trial.
#pragma once

#include <span>
#include <string>

#include "kernels/cuda/tuning/trial.h"

namespace dp::kernels::cuda {

// Appends one line per op, "problem TAB candidate TAB microseconds or - TAB note", to the file that DP_TUNING_LOG
// names. Does nothing if it is not set. An empty note_of() is left out with its tab.
void log_trial(const std::string& problem, std::span<CudaOp* const> ops, std::span<const TrialResult> results);
// One line for a problem that was not tried.
void log_untried(const std::string& problem, const std::string& candidate, const std::string& why);

}  // namespace dp::kernels::cuda
