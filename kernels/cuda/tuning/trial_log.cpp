#include "kernels/cuda/tuning/trial_log.h"

#include <cstdio>
#include <cstdlib>

#include "kernels/cuda/tuning/cache_folder.h"

namespace dp::kernels::cuda {
namespace {

void append(const std::string& problem, const std::string& candidate, const std::string& time,
            const std::string& note) {
  const char* const file = std::getenv("DP_TUNING_LOG");
  if (file == nullptr || *file == '\0') return;
  append_line(file, problem + "\t" + candidate + "\t" + time + (note.empty() ? "" : "\t" + note));
}

}  // namespace

void log_trial(const std::string& problem, std::span<CudaOp* const> ops, std::span<const TrialResult> results) {
  for (std::size_t i = 0; i < ops.size(); ++i) {
    char time[32] = "-";
    if (results[i].microseconds < kUnfit) std::snprintf(time, sizeof time, "%.3f", results[i].microseconds);
    append(problem, ops[i]->implementation(), time, note_of(results[i]));
  }
}

void log_untried(const std::string& problem, const std::string& candidate, const std::string& why) {
  append(problem, candidate, "-", "not tried: " + why);
}

}  // namespace dp::kernels::cuda
