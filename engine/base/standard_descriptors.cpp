#include "dp/standard_descriptors.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

#include "dp/error.h"

namespace dp {

void open_standard_descriptors() {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(descriptor, F_GETFD) >= 0) continue;
    // open() returns the lowest free number; all lower ones are already open.
    if (::open("/dev/null", O_RDWR) != descriptor) ::_exit(static_cast<int>(ErrorCode::io));
  }
}

void flush_stdout() {
  const bool lost = std::ferror(stdout) != 0;
  errno = 0;
  if (std::fflush(stdout) == 0 && !lost) return;
  const std::string why = errno != 0 ? std::string(": ") + std::strerror(errno) : "";
  pollfd out{STDOUT_FILENO, POLLOUT, 0};
  if (::poll(&out, 1, 0) == 1 && (out.revents & POLLERR) != 0) return;  // the reader closed its end
  throw Error(ErrorCode::io, "stdout could not be written" + why + "; redirect it to a place with free space");
}

}  // namespace dp
