// Where the backend keeps between runs what it found out about a machine.
#pragma once

#include <string>

namespace dp::kernels::cuda {

// $XDG_CACHE_HOME/dp, or ~/.cache/dp; empty where the environment names neither.
std::string cache_folder();
// Appends `line`, which has no newline, in one write: lines of processes that start together do not mix. Makes the folder. What can
// not be written is forgotten.
void append_line(const std::string& file, const std::string& line);

// Held by one process at a time, for as long as it lives. The file is created if it is missing; if that fails, the lock does nothing.
class FileLock {
 public:
  explicit FileLock(const std::string& file);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  int file_;
};

}  // namespace dp::kernels::cuda
