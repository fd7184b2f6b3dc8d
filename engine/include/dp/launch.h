// Starts the ranks of a world on this host, as processes of the program that calls it.
#pragma once

#include <atomic>
#include <string>

namespace dp {

struct LaunchOptions {
  int ranks = 1;                           // to start here
  int first_rank = 0;                      // of those
  int world_size = 1;                      // on all hosts together
  std::string address = "127.0.0.1";       // of rank 0
  int port = 0;                            // 0: one of the system's choice, where all ranks are started here
  std::string token{};                     // empty: drawn, where all ranks are started here
  const std::atomic<int>* stop = nullptr;  // a signal's number: passed on to the ranks
  std::atomic<bool>* unsaved = nullptr;    // set from the first rank's start: the ranks die with this process
};

// Runs /proc/self/exe with `arguments` once for each rank, with what process_group_from_environment() reads in its environment. Rank 0
// keeps this process's standard output, so that it may be a terminal; the other output comes line by line with the rank before it. Should this
// process be killed, the ranks are too. Call it before the process has threads.
//
// Returns when all have ended: 0, or the exit code of the rank that failed first (128 + n when signal n ended it). Ranks that go on long after
// that are killed. Error(usage) when rank 0's address can not be listened on, Error(device) when a process can not be started.
int launch_ranks(const LaunchOptions& options, char* const* arguments);

}  // namespace dp
