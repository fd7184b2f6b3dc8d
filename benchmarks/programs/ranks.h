// Lets a measured program join a process group, as one of several ranks that dp_bench starts on this host.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>

#include "dp/process_group.h"

namespace dp::benchmarks {

struct RankOptions {
  int rank = 0, ranks = 1;
  int port = 0;  // rank 0's port; rank 0 itself picks a free one
  double timeout = 300;
};
void add_rank_options(CLI::App& app, RankOptions& options);

// Null for a single rank. Under mpirun, MPI sets the rank; otherwise the options do, and rank 0 prints `listening` with
// its port before it waits for the other ranks.
std::shared_ptr<ProcessGroup> join_process_group(const RankOptions& options);

}  // namespace dp::benchmarks
