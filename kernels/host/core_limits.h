// Limits on the cores and threads of this process, beside its affinity mask (dp::available_cores() has the smallest).
#pragma once

#include <optional>

#include "dp/device.h"

namespace dp::kernels {

// The smallest CPU quota of this process's control groups (v1, v2) and their parents, rounded up to whole cores. Empty
// without a quota.
std::optional<CoreLimit> cpu_quota();

// The largest team that OpenMP gives the calling thread: OMP_THREAD_LIMIT; 1 with OMP_MAX_ACTIVE_LEVELS=0 or inside a
// parallel region that may not be nested. Empty without a limit. oneDNN waits forever in a smaller team than planned.
std::optional<CoreLimit> largest_team();

}  // namespace dp::kernels
