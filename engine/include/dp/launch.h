// Starts the ranks of a process group on this host, as processes of the calling program.
#pragma once

#include <atomic>
#include <string>

namespace dp {

struct LaunchOptions {
  int ranks = 1;                           // ranks to start on this host
  int first_rank = 0;                      // rank of the first process started here
  int world_size = 1;                      // ranks on all hosts
  std::string address = "127.0.0.1";       // of rank 0
  int port = 0;                            // 0: a free port; only if all ranks start here
  std::string token{};                     // empty: generated; only if all ranks start here
  const std::atomic<int>* stop = nullptr;  // non-zero: a signal number, forwarded to the ranks
  std::atomic<bool>* unsaved = nullptr;    // set when the first rank starts: this process's end kills the ranks
};

// Runs /proc/self/exe with `arguments` once per rank, in the environment that process_group_from_environment() reads.
// Rank 0 inherits standard output, which may be a terminal. All other output is forwarded line by line, with the rank
// as a prefix. If this process is killed, the kernel kills the ranks. Call it before the process has threads: it forks.
//
// Returns when all ranks have ended: 0, or the exit code of the first rank that failed (128 + n for signal n). A rank
// that a signal killed takes precedence over one that failed by itself. Ranks that still run 3 s after a failure are
// killed. Error(usage) if rank 0's address cannot be listened on, Error(device) if a process cannot be started.
int launch_ranks(const LaunchOptions& options, char* const* arguments);

}  // namespace dp
