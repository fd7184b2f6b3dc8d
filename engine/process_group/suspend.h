// Ctrl-Z for a program whose work is done by processes of another group.
#pragma once

#include <signal.h>
#include <sys/types.h>

namespace dp::process_group {

// While it lives, a SIGTSTP to this process stops the group before it, and the group goes on when this process does. One at a time; a
// program that handles or ignores SIGTSTP itself is left alone.
class SuspendTogether {
 public:
  explicit SuspendTogether(pid_t group);
  ~SuspendTogether();
  SuspendTogether(const SuspendTogether&) = delete;
  SuspendTogether& operator=(const SuspendTogether&) = delete;

 private:
  struct sigaction before_ {};
};

}  // namespace dp::process_group
