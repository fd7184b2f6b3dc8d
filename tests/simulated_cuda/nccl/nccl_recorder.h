// A stand-in for NCCL on the simulated CUDA. It executes the collectives and is stricter than NCCL: rules in
// docs/internals/simulated_cuda.md.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "kernels/comm/nccl/nccl_api.h"
#include "support/patience.h"

namespace dp::simt {

// NCCL is available while this object exists. Its reports are in simt::take_reports(). The product then decides by the
// simulation, not by the time, whether a thread in a call waits for another rank (waits_for_peer).
class SimulatedNccl {
 public:
  // `patience`: after this time a waiting call is reported as a hang and gives up.
  explicit SimulatedNccl(std::chrono::milliseconds patience = test::kPatience);
  ~SimulatedNccl();
  SimulatedNccl(const SimulatedNccl&) = delete;
  SimulatedNccl& operator=(const SimulatedNccl&) = delete;

  // The launches on a device, in order: "communicator 1: all_reduce of 20 float32", with the suffix " in a graph" for
  // graphs.
  std::vector<std::string> launches(int device) const;
  // From now on the ranks on this device have this asynchronous error, and their collectives do not end.
  void break_rank(int device, kernels::cuda::NcclResult error);
  // Permits separate graphs for the ranks of one process. NVIDIA's manual warns of them.
  static void allow_a_graph_for_each_replica();
  static void lose_patience();   // from now on waiting calls give up at once
  int late_connections() const;  // connections at a first use, summed over ranks
  int waiting() const;           // ranks in a call that waits for another rank to connect
  int communicators() const;     // made so far
  int handles() const;           // ranks' handles that exist now
};

}  // namespace dp::simt
