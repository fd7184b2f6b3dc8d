// The simulated GPUs as this program's GPUs.
#pragma once

#include "simulated_cuda/simulation.h"
#include "support/temporary_folder.h"

namespace dp::test {

// Simulated machines of so many GPUs, with peer access between all of them or none. What was found wrong in the simulation is a failure of
// the test case.
class SimulatedGpus {
 public:
  explicit SimulatedGpus(int count, simt::Peer peers = simt::Peer::works);  // corrupts: it claims to work
  ~SimulatedGpus();
  SimulatedGpus(const SimulatedGpus&) = delete;
  SimulatedGpus& operator=(const SimulatedGpus&) = delete;

 private:
  TemporaryFolder cache_;  // of what the probe of peer access finds
};

}  // namespace dp::test
