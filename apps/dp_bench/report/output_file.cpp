#include "output_file.h"

#include <dp/error.h>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>
#include <cerrno>
#include <cstring>
#include <utility>

namespace dp_bench {
namespace {

constexpr int kReaderPatience = 10'000;  // milliseconds to wait for the reader of a full pipe

}  // namespace

OutputFile::OutputFile(std::string path) : path_(std::move(path)) {
  if (path_.empty()) return;
  // O_NONBLOCK: opening a pipe without a reader fails instead of blocking.
  file_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0666);
  if (file_ < 0) fail(errno);
}

OutputFile::~OutputFile() {
  if (file_ >= 0) ::close(file_);
}

void OutputFile::fail(int error) const {
  const std::string why = error == ENXIO ? "it is a pipe or socket without a reader" : std::strerror(error);
  throw dp::Error(dp::ErrorCode::io,
                  "cannot write " + path_ + ": " + why + "; choose a writable folder with free space");
}

void OutputFile::write(const std::string& text) {
  if (file_ < 0) return;
  if (::ftruncate(file_, 0) != 0 && errno != EINVAL) fail(errno);  // EINVAL: a pipe or a device
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t wrote = ::write(file_, text.data() + done, text.size() - done);
    if (wrote >= 0) done += static_cast<std::size_t>(wrote);
    if (wrote >= 0 || errno == EINTR) continue;
    pollfd ready{file_, POLLOUT, 0};
    if (errno != EAGAIN) fail(errno);
    if (::poll(&ready, 1, kReaderPatience) == 0) fail(ETIMEDOUT);
  }
}

}  // namespace dp_bench
