// Short-lived helper threads, and freeing a thread from the core of whoever started it.
#pragma once

#include <cstdint>
#include <functional>

namespace dp {

// Lets the calling thread run on every core that the kernel permits; a new thread inherits its maker's pin otherwise.
void leave_inherited_core();

// Cores the calling thread may use, at least 1.
int usable_cores();

// Calls work(begin, end) on disjoint ranges that cover [0, count), on `threads` new threads (0: one per core), and
// joins them. The exception of the lowest range is rethrown.
void for_ranges(std::int64_t count, int threads, const std::function<void(std::int64_t, std::int64_t)>& work);

}  // namespace dp
