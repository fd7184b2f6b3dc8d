#include "data/threads.h"

#include <sched.h>

#include <algorithm>
#include <exception>
#include <system_error>
#include <thread>
#include <vector>

#include "dp/device.h"

namespace dp {
namespace {

// cpu_set_t is limited to 1,024 cores.
struct CoreMask {
  static constexpr int kCores = 8192;
  cpu_set_t sets[kCores / CPU_SETSIZE];
};

}  // namespace

void leave_inherited_core() {
  CoreMask mine;
  CPU_ZERO_S(sizeof mine, mine.sets);
  for (const int core : process_cores()) CPU_SET_S(static_cast<std::size_t>(core), sizeof mine, mine.sets);
  sched_setaffinity(0, sizeof mine, mine.sets);  // on failure the old mask stays: slower, but correct
}

void for_ranges(std::int64_t count, int threads, const std::function<void(std::int64_t, std::int64_t)>& work) {
  if (threads <= 0) threads = available_cores().cores;
  const std::int64_t parts = std::clamp<std::int64_t>(threads, 1, std::max<std::int64_t>(count, 1));
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(parts));
  {
    std::vector<std::jthread> pool;
    pool.reserve(static_cast<std::size_t>(parts));
    const auto do_part = [&](std::int64_t part) {
      try {
        work(count / parts * part + std::min(part, count % parts),
             count / parts * (part + 1) + std::min(part + 1, count % parts));
      } catch (...) {
        errors[static_cast<std::size_t>(part)] = std::current_exception();
      }
    };
    for (std::int64_t part = 0; part < parts; ++part) {
      try {
        pool.emplace_back([&, part] {
          leave_inherited_core();
          do_part(part);
        });
      } catch (const std::system_error&) {
        do_part(part);
      }
    }
  }
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

}  // namespace dp
