// Time limits of tests.
#pragma once

#include <chrono>
#include <thread>

namespace dp::test {

// Added to limits that separate a slow program from a hanging one. On a busy machine a thread
// may wait ten seconds for a processor, more than once.
inline constexpr std::chrono::seconds kPatience{120};

// Whether work that started at `since` and should take `seconds` ended before it counts as hanging.
inline bool in_time(std::chrono::steady_clock::time_point since, double seconds) {
  return std::chrono::steady_clock::now() - since < std::chrono::duration<double>(seconds) + kPatience;
}

// Waits until a condition holds, at most kPatience. Returns whether it holds.
template <typename Condition>
bool becomes(const Condition& condition) {
  const auto begin = std::chrono::steady_clock::now();
  while (!condition()) {
    if (!in_time(begin, 0)) return condition();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

}  // namespace dp::test
