// A measured program as one rank of several that dp_bench has started on this host.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>

#include "dp/process_group.h"

namespace dp::benchmarks {

struct RankOptions {
  int rank = 0, ranks = 1;
  int port = 0;  // where rank 0 listens; rank 0 itself takes a free one
  double timeout = 300;
};
void add_rank_options(CLI::App& app, RankOptions& options);

// Null for a single rank. Under mpirun, what MPI says; else as in the options. Rank 0 says `listening` with its port before it waits for the others.
std::shared_ptr<ProcessGroup> join_process_group(const RankOptions& options);

}  // namespace dp::benchmarks
