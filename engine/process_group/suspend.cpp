#include "engine/process_group/suspend.h"

#include <atomic>
#include <cerrno>

namespace dp::process_group {
namespace {

std::atomic<pid_t> group{0};
static_assert(std::atomic<pid_t>::is_always_lock_free);

// Stops this process by the default action of SIGTSTP. The kernel ignores it in an orphaned process group, because no
// shell could continue the process.
void stop_as_usual() {
  struct sigaction usual {
  }, own{};
  usual.sa_handler = SIG_DFL;
  sigset_t signal, before;
  ::sigemptyset(&signal);
  ::sigaddset(&signal, SIGTSTP);
  ::sigaction(SIGTSTP, &usual, &own);
  ::raise(SIGTSTP);
  ::pthread_sigmask(SIG_UNBLOCK, &signal, &before);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  ::sigaction(SIGTSTP, &own, nullptr);
}

void suspend(int) {
  const int error = errno;
  ::kill(-group.load(), SIGSTOP);
  stop_as_usual();
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

}  // namespace dp::process_group
