#include "dp/standard_descriptors.h"

#include <fcntl.h>
#include <unistd.h>

#include "dp/error.h"

namespace dp {

void open_standard_descriptors() {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(descriptor, F_GETFD) >= 0) continue;
    // open() returns the lowest free number; those below are open by now.
    if (::open("/dev/null", O_RDWR) != descriptor) ::_exit(static_cast<int>(ErrorCode::io));
  }
}

}  // namespace dp
