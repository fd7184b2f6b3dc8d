// Annotations of fibers and shared memory for the address sanitizer; empty without it.
#pragma once

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#define DP_SIMT_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define DP_SIMT_ASAN 1
#endif
#endif

#if defined(DP_SIMT_ASAN)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace dp::simt {

#if defined(DP_SIMT_ASAN)
inline constexpr bool kAddressSanitizer = true;
inline void poison(const void* begin, std::size_t bytes) { __asan_poison_memory_region(begin, bytes); }
inline void unpoison(const void* begin, std::size_t bytes) { __asan_unpoison_memory_region(begin, bytes); }
inline void leave_stack(void** kept, const void* low, std::size_t bytes) {
  __sanitizer_start_switch_fiber(kept, low, bytes);
}
inline void enter_stack(void* kept, const void** old_low, std::size_t* old_bytes) {
  __sanitizer_finish_switch_fiber(kept, old_low, old_bytes);
}
#else
inline constexpr bool kAddressSanitizer = false;
inline void poison(const void*, std::size_t) {}
inline void unpoison(const void*, std::size_t) {}
inline void leave_stack(void**, const void*, std::size_t) {}
inline void enter_stack(void*, const void**, std::size_t*) {}
#endif

}  // namespace dp::simt
