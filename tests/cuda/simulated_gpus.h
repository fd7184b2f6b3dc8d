// Provides simulated GPUs as the program's GPUs.
#pragma once

#include "simulated_cuda/simulation.h"
#include "support/temporary_folder.h"

namespace dp::test {

// A simulated machine with `count` GPUs. Reports of the simulation fail the test case.
class SimulatedGpus {
 public:
  explicit SimulatedGpus(int count, simt::Peer peers = simt::Peer::works);  // corrupts: reported to work
  ~SimulatedGpus();
  SimulatedGpus(const SimulatedGpus&) = delete;
  SimulatedGpus& operator=(const SimulatedGpus&) = delete;

 private:
  TemporaryFolder cache_;  // for verdicts of the peer probe
};

}  // namespace dp::test
