#include "engine/world/suspend.h"

#include <atomic>
#include <cerrno>

namespace dp::world {
namespace {

std::atomic<pid_t> group{0};
static_assert(std::atomic<pid_t>::is_always_lock_free);

void suspend(int) {
  const int error = errno;
  ::kill(-group.load(), SIGSTOP);
  ::raise(SIGSTOP);
  ::kill(-group.load(), SIGCONT);
  errno = error;
}

}  // namespace

SuspendTogether::SuspendTogether(pid_t others) {
  ::sigaction(SIGTSTP, nullptr, &before_);
  if (before_.sa_handler != SIG_DFL) return;
  group = others;
  struct sigaction together {};
  together.sa_handler = suspend;
  together.sa_flags = SA_RESTART;
  ::sigaction(SIGTSTP, &together, nullptr);
}

SuspendTogether::~SuspendTogether() { ::sigaction(SIGTSTP, &before_, nullptr); }

}  // namespace dp::world
