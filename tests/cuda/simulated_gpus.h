// Provides simulated GPUs as the program's GPUs.
#pragma once

#include "simulated_cuda/simulation.h"
#include "support/temporary_folder.h"

namespace dp::test {

// A simulated machine with `count` GPUs. Reports of the simulation fail the test case. After an abort, work has any
// time to end; see ImpatientAborts.
class SimulatedGpus {
 public:
  explicit SimulatedGpus(int count, simt::Peer peers = simt::Peer::works);  // corrupts: reported to work
  ~SimulatedGpus();
  SimulatedGpus(const SimulatedGpus&) = delete;
  SimulatedGpus& operator=(const SimulatedGpus&) = delete;

 private:
  TemporaryFolder cache_;  // for verdicts of the peer probe
};

// For tests of GPUs whose work never ends: while it exists, each look at the clock after an abort takes a second. Make
// it after SimulatedGpus.
class ImpatientAborts {
 public:
  ImpatientAborts();
  ~ImpatientAborts();
  ImpatientAborts(const ImpatientAborts&) = delete;
  ImpatientAborts& operator=(const ImpatientAborts&) = delete;

  static int looks();
};

}  // namespace dp::test
