// Small text files that appear whole or not at all.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "dp/error.h"
#include "engine/files/durable.h"
#include "engine/train/run_folder.h"

namespace dp {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const std::string& path, int error) {
  throw Error(ErrorCode::io, "can not write '" + path + "': " + std::strerror(error) +
                                 "; check the path, its permissions and the free space");
}

// A terminal, a pipe, /dev/null: nothing to replace.
bool is_special(const std::string& path) {
  std::error_code error;
  return fs::exists(path, error) && !fs::is_regular_file(path, error) && !fs::is_directory(path, error);
}

void write_through(const std::string& path, const std::string& text) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (fd < 0) fail(path, errno);
  const bool written = ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  const int error = errno;
  ::close(fd);
  if (!written) fail(path, error);
}

}  // namespace

void write_file_atomically(const std::string& path, const std::string& text) {
  if (is_special(path)) return write_through(path, text);
  std::error_code error;
  const fs::path target = fs::canonical(path, error);  // links stay links
  replace_file(error ? path : target.string(), [&](FileWriter& file) { file.write(text); });
}

void require_writable(const std::string& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) fail(path, EISDIR);
  if (is_special(path)) return;
  const std::string temporary = temporary_sibling(split_path(path), "probe");
  const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (fd < 0) fail(path, errno);
  ::close(fd);
  ::unlink(temporary.c_str());
}

}  // namespace dp
