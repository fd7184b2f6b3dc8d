// The multi-process engine from the command line: who starts the ranks, and which device each has.
#pragma once

#include <dp/process_group.h>
#include <atomic>
#include <optional>

#include "arguments.h"
#include "devices.h"
#include "signals.h"

namespace dp_train {

// dp::Error(usage) for flags that the multi-process engine does not know, or that contradict each other.
void check_processes(const Arguments& arguments);

// Which rank this process is, when it was started as one; nothing when it is to start them.
std::optional<dp::ProcessGroupOptions> rank_of_this_process(const Arguments& arguments, const std::atomic<int>& stop);

// Starts this host's ranks, one a device, and returns their exit code.
int start_ranks(const Arguments& arguments, char* const* argv, Signals& signals);

// Of the devices named, the one for this rank: by its number among the ranks of its host.
Devices device_of_rank(const Arguments& arguments, const dp::ProcessGroup& group);

}  // namespace dp_train
