// Chooses the devices of a run and, for --engine ddp, starts the ranks and assigns their devices.
#pragma once

#include <dp/device.h>
#include <dp/process_group.h>
#include <atomic>
#include <optional>
#include <string>
#include <vector>

#include "command.h"
#include "signals.h"

namespace dp_train {

struct Devices {
  std::vector<dp::Device> list;  // each repeated --replicas-per-device times
  std::string notice;            // printed when no device was named and this host has no GPU
  std::string warning;           // printed when no device was named and the GPUs of this host cannot be used
};

// Creates no CUDA context. dp::Error(usage) for invalid ids. dp::Error(device), with the reason, if GPUs are requested
// and none is usable.
Devices choose_devices(const Command& command);

// The given options that choose devices and processes, such as "--cpu 2". A resumed run does not restore them.
std::string device_options(const Command& command);

// Leaves out GPUs until --logical-shards and --pipeline-stages fit their number. dp::Error(device) if none are left.
void fit_to_layout(Devices& devices, const Command& command);

// dp::Error(usage) for flags that the chosen --engine does not support, or that contradict each other.
void check_processes(const Command& command);

// The name of the launcher (torchrun, srun, mpirun) that started this process and others; empty without a launcher.
std::string launcher_here();
int rank_here();  // the rank that it gave to this process; 0 without a launcher

// A warning if a launcher started several copies and this one has not joined a process group.
// It names the environment variable. Only the first copy gets it; others get an empty text.
std::string ignored_launcher(const Command& command, bool is_rank);

// This process's rank, if a launcher or mpirun started it as one. Nullopt if this process must start the ranks.
std::optional<dp::ProcessGroupOptions> rank_of_this_process(const Command& command, const std::atomic<int>& stop);

// Starts one rank per device of this host and returns their exit code.
int start_ranks(const Command& command, char* const* argv, Signals& signals);

// This rank's device: the chosen device with the index of its local rank. On CPUs: one replica.
Devices device_of_rank(const Command& command, const dp::ProcessGroup& group);

}  // namespace dp_train
