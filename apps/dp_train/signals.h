// The signals that end a run (dp/stop_signals.h). The first one requests a stop, and ends the process once nothing is
// unsaved. The second ends it at once.
#pragma once

#include <atomic>
#include <csignal>
#include <string>

namespace dp_train {

struct Signals {
  std::atomic<int> received{0};        // the number of the first one; 0: none yet
  std::atomic<bool> unsaved{false};    // while true, only a second signal ends the process
  std::atomic<bool> announces{true};   // whether the first signal prints a line
  std::atomic<bool> forwarded{false};  // the parent process is a launcher that forwards its own signals
};

// Starts the thread that handles the signals. Once `unsaved` has been false for a second after the first signal, the
// process exits with 128 + the signal's number, regardless of other threads. Ignores SIGPIPE: a closed terminal or
// pager does not end a training run.
//
// Two repeats do not count as a second signal:
// - The same signal within one second: `timeout`, systemd, Slurm and killall signal a process and its group. SIGTERM
//   and SIGHUP count as the same, because a session that closes may send both. Only time in which this process runs is
//   counted, since it may be starved or stopped in between.
// - A signal from a launcher (`forwarded`), at any time.
//
// Call it before creating other threads. They inherit the blocked signals. oneDNN's generated code moves the stack
// pointer into its workspace, and the frame of a signal handler would overwrite that.
Signals& handle_signals();

// The signals that end a run, without those that stay ignored.
sigset_t stop_signals();

// Whether the second signal repeats the first: a closing session may send SIGTERM and SIGHUP together.
bool same_request(int first, int second);

// From now on a crash is recorded in `file` (dp/crash_record.h). With an empty name only the stack is printed.
void handle_crashes(const std::string& file = {});

// Returns the number of the first signal, or 0. Includes a pending one that the signal thread has not seen yet.
// Call it on a thread that blocks the signals.
int received_signal();

}  // namespace dp_train
