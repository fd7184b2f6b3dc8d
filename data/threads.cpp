#include "data/threads.h"

#include <sched.h>

#include <algorithm>
#include <exception>
#include <thread>
#include <vector>

namespace dp {
namespace {

// cpu_set_t ends at 1,024 cores; this does not.
struct CoreMask {
  static constexpr int kCores = 8192;
  cpu_set_t sets[kCores / CPU_SETSIZE];
};

}  // namespace

void leave_inherited_core() {
  CoreMask all;
  CPU_ZERO_S(sizeof all, all.sets);
  for (int core = 0; core < CoreMask::kCores; ++core) CPU_SET_S(core, sizeof all, all.sets);
  sched_setaffinity(0, sizeof all, all.sets);  // a refusal leaves the old mask, which is slower and not wrong
}

int usable_cores() {
  CoreMask mine;
  CPU_ZERO_S(sizeof mine, mine.sets);
  if (sched_getaffinity(0, sizeof mine, mine.sets) != 0) return std::max(1u, std::thread::hardware_concurrency());
  return std::max(1, CPU_COUNT_S(sizeof mine, mine.sets));
}

void for_ranges(std::int64_t count, int threads, const std::function<void(std::int64_t, std::int64_t)>& work) {
  if (threads <= 0) {
    // Asked of a thread that is free to run anywhere: the caller may be pinned to one core.
    std::thread([&] {
      leave_inherited_core();
      threads = usable_cores();
    }).join();
  }
  const std::int64_t parts = std::clamp<std::int64_t>(threads, 1, std::max<std::int64_t>(count, 1));
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(parts));
  {
    std::vector<std::jthread> pool;
    pool.reserve(static_cast<std::size_t>(parts));
    for (std::int64_t part = 0; part < parts; ++part)
      pool.emplace_back([&, part] {
        leave_inherited_core();
        try {
          work(count / parts * part + std::min(part, count % parts),
               count / parts * (part + 1) + std::min(part + 1, count % parts));
        } catch (...) {
          errors[static_cast<std::size_t>(part)] = std::current_exception();
        }
      });
  }
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

}  // namespace dp
