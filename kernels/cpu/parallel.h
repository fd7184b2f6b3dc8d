// Splits a range over an OpenMP team of the calling thread.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>

namespace dp::kernels {

// Calls body(begin, end) once per thread, with consecutive parts of [0, count) that begin at multiples of `grain`. The
// body must not throw. A body that loops over elements should capture by value: pointers captured by reference prevent
// vectorisation.
template <typename Body>
void parallel_ranges(int threads, std::int64_t count, std::int64_t grain, const Body& body) {
  const std::int64_t grains = (count + grain - 1) / grain;
  if (threads <= 1 || grains <= 1) {
    if (count > 0) body(std::int64_t{0}, count);
    return;
  }
#pragma omp parallel num_threads(threads)
  {
    const std::int64_t part = omp_get_thread_num(), parts = omp_get_num_threads();
    const std::int64_t begin = grains * part / parts * grain;
    const std::int64_t end = std::min(count, grains * (part + 1) / parts * grain);
    if (begin < end) body(begin, end);
  }
}

// The number of threads to use for `bytes` of memory traffic. Starting a team costs a few microseconds.
inline int threads_for(int threads, std::int64_t bytes) { return bytes < 32 * 1024 ? 1 : threads; }

}  // namespace dp::kernels
