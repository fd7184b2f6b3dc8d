// Linked into every mutant: one that signals every process of this user, or the machine's first, signals none.
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

extern "C" int kill(pid_t process, int signal) noexcept {
  if (signal != 0 && (process == -1 || process == 1)) {
    errno = EPERM;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_kill, process, signal));
}
