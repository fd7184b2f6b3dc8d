// Parallel ranges on short-lived threads, and CPU affinity.
#pragma once

#include <cstdint>
#include <functional>

namespace dp {

// Lets the calling thread run on every core of the process. A new thread inherits its creator's pinning otherwise.
void leave_inherited_core();

// Calls work(begin, end) on disjoint ranges that cover [0, count), on `threads` new threads (0: one per core), and
// joins them. If a thread cannot be started, the caller runs its range. Rethrows the exception of the lowest range.
void for_ranges(std::int64_t count, int threads, const std::function<void(std::int64_t, std::int64_t)>& work);

}  // namespace dp
