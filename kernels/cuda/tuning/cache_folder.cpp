#include "kernels/cuda/tuning/cache_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>

namespace dp::kernels::cuda {

namespace fs = std::filesystem;

std::string cache_folder() {
  const char* const cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache != '\0') return (fs::path(cache) / "dp").string();
  const char* const home = std::getenv("HOME");
  return home == nullptr ? std::string() : (fs::path(home) / ".cache/dp").string();
}

namespace {

// Returns -1 if the file cannot be opened.
int open_to_append(const std::string& file) {
  std::error_code ignored;
  fs::create_directories(fs::path(file).parent_path(), ignored);
  return ::open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
}

}  // namespace

void append_line(const std::string& file, const std::string& line) {
  const int out = open_to_append(file);
  if (out < 0) return;
  const std::string text = line + "\n";
  [[maybe_unused]] const ssize_t written = ::write(out, text.data(), text.size());
  ::close(out);
}

FileLock::FileLock(const std::string& file) : file_(file.empty() ? -1 : open_to_append(file)) {
  while (file_ >= 0 && ::flock(file_, LOCK_EX) != 0 && errno == EINTR) {
  }
}

FileLock::~FileLock() {
  if (file_ >= 0) ::close(file_);
}

}  // namespace dp::kernels::cuda
