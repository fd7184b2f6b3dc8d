// The simulated GPUs as this program's GPUs.
#pragma once

#include "simt/simulation.h"
#include "support/training.h"

namespace dp::test {

// Simulated machines of so many GPUs, with peer access between all of them or none. What was found wrong in the simulation is a failure of
// the test case.
class SimulatedGpus {
 public:
  explicit SimulatedGpus(int count, simt::Peer peers = simt::Peer::works);
  ~SimulatedGpus();
  SimulatedGpus(const SimulatedGpus&) = delete;
  SimulatedGpus& operator=(const SimulatedGpus&) = delete;
};

inline DataParallelOptions on_gpus(int replicas, int devices) {
  DataParallelOptions options;
  std::vector<int> ids;
  for (int i = 0; i < replicas; ++i) ids.push_back(i % devices);
  options.devices = gpus(ids);
  return options;
}

}  // namespace dp::test
