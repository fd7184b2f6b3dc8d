// What streams were told to do, in order, for tests that compare it.
#pragma once

#include "simt/runtime/stream.h"

namespace dp::simt {

// Where Simulation::log_launches is set.
void log_launch(const Stream& stream, const Work& work);
void forget_launches();

// Where Simulation::log_blocking_calls is set: work was enqueued that waits for another device; a call that may block was made on the current
// device.
void log_exchange();
void log_blocking_call(const std::string& call);

}  // namespace dp::simt
