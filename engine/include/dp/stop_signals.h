// The signals that end a run after its finished steps are saved.
#pragma once

#include <csignal>

namespace dp {

// A person or `kill`; a hang-up of the terminal; a scheduler's warning of its time limit (Slurm's --signal=USR1@90). In
// the order in which the kernel delivers several that are pending.
inline constexpr int kStopSignals[] = {SIGHUP, SIGINT, SIGUSR1, SIGUSR2, SIGTERM};

// Whether the parent process has ignored `number` for this process, as nohup ignores SIGHUP; it then stays ignored.
// SIGINT and SIGTERM are always handled: shells without job control ignore SIGINT for programs that they start with &.
inline bool stays_ignored(int number) {
  struct sigaction action {};
  return number != SIGINT && number != SIGTERM && ::sigaction(number, nullptr, &action) == 0 &&
         action.sa_handler == SIG_IGN;
}

}  // namespace dp
