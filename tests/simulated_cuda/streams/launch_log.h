// A log of each stream's work in order, for tests that compare it.
#pragma once

#include "simulated_cuda/streams/stream.h"

namespace dp::simt {

// Does nothing unless Simulation::log_launches is set.
void log_launch(const Stream& stream, const Work& work);
void forget_launches();

}  // namespace dp::simt
