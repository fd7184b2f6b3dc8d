// The folder for measurements that the backend keeps between runs.
#pragma once

#include <string>

namespace dp::kernels::cuda {

// $XDG_CACHE_HOME/dp, or ~/.cache/dp. Empty if neither XDG_CACHE_HOME nor HOME is set.
std::string cache_folder();
// Appends `line` and a newline in one write, so that lines of concurrent processes do not mix. Creates the folder.
// Ignores errors.
void append_line(const std::string& file, const std::string& line);

// An exclusive lock between processes, held for the object's lifetime. Creates the file. If that fails, there is no
// lock.
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
