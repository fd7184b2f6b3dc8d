// A stand-in for NCCL over the simulated CUDA. It does the work, and is stricter than NCCL: docs/internals/simulated_cuda.md has the rules.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "kernels/cuda/comm/nccl_api.h"

namespace dp::simt {

// Between its construction and its end NCCL is there. What it has reported is among simt::take_reports().
class SimulatedNccl {
 public:
  // `patience`: after which a collective that waits is said to wait for ever, and gives up.
  explicit SimulatedNccl(std::chrono::milliseconds patience = std::chrono::seconds(10));
  ~SimulatedNccl();
  SimulatedNccl(const SimulatedNccl&) = delete;
  SimulatedNccl& operator=(const SimulatedNccl&) = delete;

  // What has been launched on a device, in order: "communicator 1: all_reduce of 20 float32", of graphs " in a graph" behind it.
  std::vector<std::string> launches(int device) const;
  // From now on the asynchronous error of the ranks on this device, whose collectives do not end.
  void break_rank(int device, kernels::cuda::NcclResult error);
  // From now on several ranks of a process may be captured in graphs of their own, which NVIDIA's manual warns of.
  static void allow_a_graph_for_each_replica();
  int late_connections() const;  // that were made at a first use, counted for each rank
  int communicators() const;     // made so far
  int handles() const;           // ranks' handles that exist now
};

}  // namespace dp::simt
