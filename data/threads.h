// Short-lived helper threads, and freeing a thread from the core of whoever started it.
#pragma once

#include <cstdint>
#include <functional>

namespace dp {

// Lets the calling thread run on every core of the process; a new thread inherits its maker's pin otherwise.
void leave_inherited_core();

// Calls work(begin, end) on disjoint ranges that cover [0, count), on `threads` new threads (0: one per core), and
// joins them. What no thread can be started for is done by the caller. The exception of the lowest range is rethrown.
void for_ranges(std::int64_t count, int threads, const std::function<void(std::int64_t, std::int64_t)>& work);

}  // namespace dp
