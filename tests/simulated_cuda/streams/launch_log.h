// What streams were told to do, in order, for tests that compare it.
#pragma once

#include "simulated_cuda/streams/stream.h"

namespace dp::simt {

// Where Simulation::log_launches is set.
void log_launch(const Stream& stream, const Work& work);
void forget_launches();

}  // namespace dp::simt
