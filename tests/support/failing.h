// For failure tests: sets DP_FAIL for the lifetime of an object, and counts the threads of the process.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <string>

namespace dp::test {

class FailEnvironment {
 public:
  explicit FailEnvironment(const std::string& text) { setenv("DP_FAIL", text.c_str(), 1); }
  ~FailEnvironment() { unsetenv("DP_FAIL"); }
  FailEnvironment(const FailEnvironment&) = delete;
  FailEnvironment& operator=(const FailEnvironment&) = delete;
};

inline std::ptrdiff_t thread_count() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"), std::filesystem::directory_iterator{});
}

}  // namespace dp::test
