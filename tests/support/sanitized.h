// Shorter tests under a sanitizer.
#pragma once

#include <initializer_list>
#include <vector>

namespace dp::test {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// The cases of a loop. Sanitizers make the simulated GPUs up to 50 times slower and look for invalid memory accesses
// and races, not for bits: there the loop has only the cases of `fewer`, which reach the same code.
template <typename T>
std::vector<T> cases(std::initializer_list<T> all, std::initializer_list<T> fewer) {
  return kSanitized ? fewer : all;
}

}  // namespace dp::test
