#include "engine/train/record/append_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "dp/error.h"
#include "engine/base/files.h"

namespace dp {
namespace {

[[noreturn]] void fail(const char* what, const std::string& path, const char* remedy) {
  throw Error(ErrorCode::io, std::string(what) + " '" + path + "': " + std::strerror(errno) + remedy);
}

}  // namespace

AppendFile::AppendFile(const std::string& path, Open how) : path_(path) {
  const int flags = O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | (how == Open::new_only ? O_EXCL : 0);
  fd_ = ::open(path.c_str(), flags, 0644);
  if (fd_ < 0) fail("cannot write", path, "; check its permissions");
}

AppendFile::~AppendFile() {
  if (fd_ >= 0) ::close(fd_);
}

AppendFile& AppendFile::operator=(AppendFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  return *this;
}

void AppendFile::keep(std::size_t bytes) {
  if (::ftruncate(fd_, static_cast<off_t>(bytes)) != 0) fail("cannot trim", path_, "; check its permissions");
  ::lseek(fd_, static_cast<off_t>(bytes), SEEK_SET);
}

void AppendFile::append(const std::string& text) {
  if (fd_ < 0) return;
  const off_t begin = ::lseek(fd_, 0, SEEK_CUR);
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t wrote = ::write(fd_, text.data() + done, text.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) {
      const int saved = errno;
      if (::ftruncate(fd_, begin) == 0) ::lseek(fd_, begin, SEEK_SET);  // removes an incomplete record
      errno = saved;
      const char* const remedy = remedy_of(saved);
      fail("cannot append to", path_, *remedy != '\0' ? remedy : "; check the disk and the folder");
    }
    done += static_cast<std::size_t>(wrote);
  }
}

}  // namespace dp
