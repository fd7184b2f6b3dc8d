// Finds __launch_bounds__ at run time: g++ puts a one-byte nop before a kernel for every 32 threads. Other compilers
// leave no trace of the bounds.
#pragma once

namespace dp::simt {

#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__)
inline constexpr bool kKnowsLaunchBounds = true;
#define DP_SIMT_LAUNCH_BOUNDS(...) \
  __attribute__((                  \
      patchable_function_entry(::dp::simt::room_for_threads(__VA_ARGS__), ::dp::simt::room_for_threads(__VA_ARGS__))))
#else
inline constexpr bool kKnowsLaunchBounds = false;
#define DP_SIMT_LAUNCH_BOUNDS(...)
#endif

inline constexpr int kThreadsPerByte = 32;
constexpr int room_for_threads(int threads, int /*blocks*/ = 1) {
  return (threads + kThreadsPerByte - 1) / kThreadsPerByte;
}

}  // namespace dp::simt
