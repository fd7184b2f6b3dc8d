// What SIGINT and SIGTERM do: the first asks the run to stop, and ends the program where nothing would be lost; the second ends it at once.
#pragma once

#include <atomic>

namespace dp_train {

struct Signals {
  std::atomic<int> received{0};        // the number of the first one; 0: none yet
  std::atomic<bool> unsaved{false};    // while true, only a second signal ends the process
  std::atomic<bool> announces{true};   // whether the first signal prints a line
  std::atomic<bool> forwarded{false};  // the parent process is a launcher that forwards its own signals
};

// Starts the thread that handles both signals. Once `unsaved` has been false for a second after the first signal, the process exits with
// 128 + its number, whatever the other threads are doing. SIGPIPE is ignored: a closed terminal or pager does not end a training run.
//
// Not a second signal: the same one within a second of the first (`timeout`, systemd, Slurm and killall signal a process and its group), and
// one from a launcher (`forwarded`), however late it comes. The second is counted while this process runs: it may have been starved or stopped
// in between.
//
// Call it before there are other threads. They inherit the blocked signals: oneDNN's generated code moves the stack pointer into its
// workspace, and a handler's frame would overwrite that.
Signals& handle_signals();

}  // namespace dp_train
