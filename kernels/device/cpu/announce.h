// Reports to ThreadSanitizer the memory accesses of code that it cannot see: the code that oneDNN generates.
#pragma once

#include <cstddef>

#if defined(DP_THREAD_SANITIZER)
extern "C" {
void __tsan_read_range(void* address, unsigned long bytes);
void __tsan_write_range(void* address, unsigned long bytes);
}
#endif

namespace dp::kernels {

#if defined(DP_THREAD_SANITIZER)
// ThreadSanitizer does not see OpenMP's barriers either, hence ops use one thread in this build.
inline constexpr bool kThreadSanitizer = true;
inline void announce_read(const void* data, std::size_t bytes) {
  if (data != nullptr && bytes > 0) __tsan_read_range(const_cast<void*>(data), bytes);
}
inline void announce_write(void* data, std::size_t bytes) {
  if (data != nullptr && bytes > 0) __tsan_write_range(data, bytes);
}
#else
inline constexpr bool kThreadSanitizer = false;
inline void announce_read(const void*, std::size_t) {}
inline void announce_write(void*, std::size_t) {}
#endif

}  // namespace dp::kernels
