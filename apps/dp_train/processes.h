// --engine ddp: starts the ranks and assigns their devices.
#pragma once

#include <dp/process_group.h>
#include <atomic>
#include <optional>
#include <string>

#include "command.h"
#include "devices.h"
#include "signals.h"

namespace dp_train {

// dp::Error(usage) for flags that the chosen --engine does not support, or that contradict each other.
void check_processes(const Command& command);

// A warning if a launcher (torchrun, srun, mpirun) started several copies and this one has not joined a process group.
// It names the environment variable. Only the first copy gets it; others get an empty text.
std::string ignored_launcher(const Command& command, bool is_rank);

// This process's rank, if a launcher or mpirun started it as one. Nullopt if this process must start the ranks.
std::optional<dp::ProcessGroupOptions> rank_of_this_process(const Command& command, const std::atomic<int>& stop);

// Starts one rank per device of this host and returns their exit code.
int start_ranks(const Command& command, char* const* argv, Signals& signals);

// This rank's device: the chosen device with the index of its local rank. On CPUs: one replica.
Devices device_of_rank(const Command& command, const dp::ProcessGroup& group);

}  // namespace dp_train
