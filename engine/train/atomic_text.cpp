// Small text files that appear whole or not at all.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "dp/error.h"
#include "engine/train/run_folder.h"

namespace dp {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const std::string& path) {
  throw Error(ErrorCode::io, "can not write '" + path + "': " + std::strerror(errno) +
                                 "; check the path, its permissions and the free space");
}

std::string folder_of(const std::string& path) {
  const std::string parent = fs::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

std::string temporary_of(const std::string& path) { return path + ".tmp" + std::to_string(::getpid()); }

bool write_all(int fd, const std::string& text) {
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t wrote = ::write(fd, text.data() + done, text.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return false;
    done += static_cast<std::size_t>(wrote);
  }
  return true;
}

// A terminal, a pipe, /dev/null: nothing to replace.
void write_through(const std::string& path, const std::string& text) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (fd < 0) fail(path);
  const bool written = write_all(fd, text);
  const int saved = errno;
  ::close(fd);
  errno = saved;
  if (!written) fail(path);
}

}  // namespace

void write_file_atomically(const std::string& target, const std::string& text) {
  std::error_code error;
  const std::string path = fs::exists(target, error) ? fs::canonical(target).string() : target;  // links stay links
  if (fs::exists(path, error) && !fs::is_regular_file(path, error)) return write_through(path, text);
  const std::string temporary = temporary_of(path);
  const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
  if (fd < 0) fail(path);
  const bool written = write_all(fd, text) && ::fsync(fd) == 0;
  const int saved = errno;
  ::close(fd);
  if (!written || ::rename(temporary.c_str(), path.c_str()) != 0) {
    const int cause = written ? errno : saved;
    ::unlink(temporary.c_str());
    errno = cause;
    fail(path);
  }
  const int folder = ::open(folder_of(path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder >= 0) {
    ::fsync(folder);  // some file systems know no fsync of a folder; the file itself is whole either way
    ::close(folder);
  }
}

void require_writable(const std::string& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) {
    errno = EISDIR;
    fail(path);
  }
  if (fs::exists(path, error) && !fs::is_regular_file(path, error)) return;
  const std::string temporary = temporary_of(path);
  const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
  if (fd < 0) fail(path);
  ::close(fd);
  ::unlink(temporary.c_str());
}

}  // namespace dp
