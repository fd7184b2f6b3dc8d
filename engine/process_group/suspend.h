// Ctrl-Z for a program whose work runs in processes of another process group.
#pragma once

#include <signal.h>
#include <sys/types.h>

namespace dp::process_group {

// During its lifetime, a SIGTSTP to this process first stops `group`; the group continues when this process does. At
// most one object at a time. Without effect if the program handles or ignores SIGTSTP.
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
