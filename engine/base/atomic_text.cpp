#include "engine/base/atomic_text.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "dp/error.h"
#include "engine/base/durable.h"

namespace dp {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const std::string& path, int error) {
  const char* const why = error == ENXIO ? "it is a pipe or socket without a reader" : std::strerror(error);
  throw Error(ErrorCode::io,
              "cannot write '" + path + "': " + why + "; check the path, its permissions and the free space");
}

// A terminal, a pipe or /dev/null is written in place.
bool is_special(const std::string& path) {
  std::error_code error;
  return fs::exists(path, error) && !fs::is_regular_file(path, error) && !fs::is_directory(path, error);
}

constexpr int kReaderPatience = 10'000;  // milliseconds to wait for a pipe's reader

// O_NONBLOCK: opening a pipe without a reader fails instead of blocking.
FileHandle open_special(const std::string& path) {
  FileHandle file(::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!file) fail(path, errno);
  return file;
}

void write_through(const std::string& path, std::string_view text) {
  const FileHandle file = open_special(path);
  while (!text.empty()) {
    const ssize_t wrote = ::write(file.get(), text.data(), text.size());
    if (wrote >= 0) text.remove_prefix(static_cast<std::size_t>(wrote));
    if (wrote >= 0 || errno == EINTR) continue;
    pollfd ready{file.get(), POLLOUT, 0};
    if (errno != EAGAIN) fail(path, errno);
    if (::poll(&ready, 1, kReaderPatience) == 0) fail(path, ETIMEDOUT);
  }
}

}  // namespace

void write_file_atomically(const std::string& path, const std::string& text) {
  if (is_special(path)) return write_through(path, text);
  std::error_code error;
  const fs::path target = fs::canonical(path, error);  // a symbolic link is kept; its target is replaced
  replace_file(error ? path : target.string(), [&](FileWriter& file) { file.write(text); });
}

FileHandle require_writable(const std::string& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) fail(path, EISDIR);
  if (is_special(path)) return open_special(path);
  const std::string temporary = temporary_sibling(split_path(path), "probe");
  const FileHandle file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!file) fail(path, errno);
  ::unlink(temporary.c_str());
  return {};
}

}  // namespace dp
