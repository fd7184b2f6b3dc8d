#include "kernels/cuda/trial_log.h"

#include <cstdio>
#include <cstdlib>

#include "kernels/cuda/cache_folder.h"
#include "kernels/cuda/trial.h"

namespace dp::kernels::cuda {

void log_trial(const std::string& problem, std::span<CudaOp* const> ops, std::span<const double> times) {
  const char* const file = std::getenv("DP_TUNING_LOG");
  if (file == nullptr || *file == '\0') return;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    char time[32] = "-";
    if (times[i] < kUnfit) std::snprintf(time, sizeof time, "%.3f", times[i]);
    append_line(file, problem + "\t" + ops[i]->implementation() + "\t" + time);
  }
}

}  // namespace dp::kernels::cuda
