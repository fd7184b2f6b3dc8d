// Splits a range over an OpenMP team of the calling thread.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

namespace dp::kernels {

template <typename Body>
void call_range(const Body& body, std::int64_t begin, std::int64_t end, int thread) {
  if constexpr (std::is_invocable_v<const Body&, std::int64_t, std::int64_t, int>)
    body(begin, end, thread);
  else
    body(begin, end);
}

// Calls body(begin, end), or body(begin, end, thread) with thread < threads, at most once per thread, with consecutive
// parts of [0, count) that begin at multiples of `grain`. The team may be smaller than `threads`. The body must not
// throw. A body that loops over elements should capture by value: pointers captured by reference prevent vectorisation.
template <typename Body>
void parallel_ranges(int threads, std::int64_t count, std::int64_t grain, const Body& body) {
  const std::int64_t grains = (count + grain - 1) / grain;
  if (threads <= 1 || grains <= 1) {
    if (count > 0) call_range(body, 0, count, 0);
    return;
  }
#pragma omp parallel num_threads(threads)
  {
    const int part = omp_get_thread_num(), parts = omp_get_num_threads();
    const std::int64_t begin = grains * part / parts * grain;
    const std::int64_t end = std::min(count, grains * (part + 1) / parts * grain);
    if (begin < end) call_range(body, begin, end, part);
  }
}

// The number of threads to use for `bytes` of memory traffic. Starting a team costs a few microseconds.
inline int threads_for(int threads, std::int64_t bytes) { return bytes < 32 * 1024 ? 1 : threads; }

}  // namespace dp::kernels
