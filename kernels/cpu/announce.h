// Tells the thread sanitizer which memory is read and written by code it cannot see: what oneDNN generates.
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
// OpenMP's barriers are invisible to the sanitizer too, so ops run on one thread each under it.
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
