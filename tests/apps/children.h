// The child processes of a process.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

namespace dp::test {

inline std::vector<pid_t> children_of(pid_t parent) {
  std::vector<pid_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream file(entry.path() / "stat");
    const std::string text((std::istreambuf_iterator<char>(file)), {});
    std::istringstream after_name(text.substr(text.rfind(')') + 1));  // "... (name) state parent"
    std::string state;
    pid_t its_parent = 0;
    if (after_name >> state >> its_parent && its_parent == parent) found.push_back(static_cast<pid_t>(std::stoi(name)));
  }
  return found;
}

}  // namespace dp::test
