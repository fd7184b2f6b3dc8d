// How long a test waits for what should come at once.
#pragma once

#include <chrono>

namespace dp::test {

// Added to limits that tell what ends by itself from what hangs: on a machine whose cores others take, a thread may not run for seconds.
inline constexpr std::chrono::seconds kPatience{20};

// Whether what began at `since` and should take so many seconds did not hang.
inline bool in_time(std::chrono::steady_clock::time_point since, double seconds) {
  return std::chrono::steady_clock::now() - since < std::chrono::duration<double>(seconds) + kPatience;
}

}  // namespace dp::test
