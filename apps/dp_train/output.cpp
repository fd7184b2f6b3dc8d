#include "output.h"

#include <dp/error.h>
#include <poll.h>
#include <unistd.h>
#include <cerrno>
#include <cstdio>
#include <cstring>

namespace dp_train {

int finish_output(const char* severity) {
  const bool lost = std::ferror(stdout) != 0;
  errno = 0;
  if (std::fflush(stdout) == 0 && !lost) return 0;
  const int error = errno;
  pollfd out{STDOUT_FILENO, POLLOUT, 0};
  if (::poll(&out, 1, 0) == 1 && (out.revents & POLLERR) != 0) return 0;  // the reader closed its end
  std::fprintf(stderr, "dp_train: %s: stdout could not be written%s%s; send it where there is room\n", severity,
               error != 0 ? ": " : "", error != 0 ? std::strerror(error) : "");
  return static_cast<int>(dp::ErrorCode::io);
}

}  // namespace dp_train
