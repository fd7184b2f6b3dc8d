// Provides simulated GPUs as the program's GPUs.
#pragma once

#include "simulated_cuda/simulation.h"
#include "support/temporary_folder.h"

namespace dp::test {

// A simulated machine with `count` GPUs. Reports of the simulation fail the test case. After an abort, the engine waits
// for work without a time limit, unless there is an ImpatientAborts, and for each thread in a call of NCCL until it
// leaves the call or waits for another rank.
class SimulatedGpus {
 public:
  explicit SimulatedGpus(int count, simt::Peer peers = simt::Peer::works);  // corrupts: reported to work
  ~SimulatedGpus();
  SimulatedGpus(const SimulatedGpus&) = delete;
  SimulatedGpus& operator=(const SimulatedGpus&) = delete;

 private:
  TemporaryFolder cache_;  // for verdicts of the peer probe
};

// For tests in which the work of a GPU never ends. While it exists, the time limits of that work after an abort expire
// at once: each read of the clock adds a second. Create it after SimulatedGpus.
class ImpatientAborts {
 public:
  ImpatientAborts();
  ~ImpatientAborts();
  ImpatientAborts(const ImpatientAborts&) = delete;
  ImpatientAborts& operator=(const ImpatientAborts&) = delete;

  static int looks();
};

}  // namespace dp::test
