// Detects deadlocks on the driver lock: calls that may wait for a device or for a lock of the driver, while a kernel
// spins.
//
// CUDA documents few calls as non-blocking. If a kernel spins until another launch ends it, a blocking call may hold
// the lock that this launch needs. So each blocking call during a spin is reported.
#pragma once

#include <cstdint>
#include <string>

namespace dp::simt {

// Every call that may block must call this first. `call`: its name. If kernels can spin and Simulation::delays is set,
// it waits up to 200 us for one to start, to make the overlap likely. With Simulation::log_blocking_calls it also adds
// the call to the log of take_blocking_calls().
void may_block(const std::string& call);
// Starts that log. Called when work that waits for another device is enqueued.
void log_exchange();
std::uint64_t blocking_calls();  // of the process, so far

// Marks a library's kernel as spinning. `key`: any unique address. `what`: for the report, "all_reduce of 20 float32
// (communicator 1) on cuda:1, which waits for cuda:0". An empty `what` ends the spin.
void set_spinning(const void* key, const std::string& what);
void spinners_changed(int by);  // changes the number of library objects that can launch spinning kernels

void forget_driver();  // called before and after each test case

}  // namespace dp::simt
