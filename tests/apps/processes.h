// What /proc tells of processes.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "support/temporary_folder.h"

namespace dp::test {

// The letter of a process's state: R runs, S sleeps, T is stopped, Z has ended; '-' if there is none.
inline char state_of(pid_t process) {
  const std::string text = read_text("/proc/" + std::to_string(process) + "/stat");  // "... (name) state parent"
  const std::size_t name = text.rfind(')');
  return name == std::string::npos || text.size() <= name + 2 ? '-' : text[name + 2];
}

inline std::vector<pid_t> children_of(pid_t parent) {
  std::vector<pid_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const std::string text = read_text(entry.path() / "stat");        // does not throw if the process ends meanwhile
    std::istringstream after_name(text.substr(text.rfind(')') + 1));  // "... (name) state parent"
    std::string state;
    pid_t its_parent = 0;
    if (after_name >> state >> its_parent && its_parent == parent) found.push_back(static_cast<pid_t>(std::stoi(name)));
  }
  return found;
}

// Whether this process has a thread of that name.
inline bool has_thread(const std::string& name) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task"))
    if (read_text(entry.path() / "comm") == name + "\n") return true;
  return false;
}

}  // namespace dp::test
