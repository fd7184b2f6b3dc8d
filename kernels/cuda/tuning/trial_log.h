// What became of each candidate of a trial, in a file.
#pragma once

#include <span>
#include <string>

#include "kernels/cuda/tuning/trial.h"

namespace dp::kernels::cuda {

// Appends lines "problem <tab> candidate <tab> microseconds or - <tab> note" to the file that DP_TUNING_LOG names, if it does. The note,
// with its tab, is left out where there is none; note_of() has them.
void log_trial(const std::string& problem, std::span<CudaOp* const> ops, std::span<const TrialResult> results);
// One line, of a problem that was not tried.
void log_untried(const std::string& problem, const std::string& candidate, const std::string& why);

}  // namespace dp::kernels::cuda
