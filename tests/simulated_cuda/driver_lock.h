// What waits for the driver: calls that may wait for devices or for a lock of it, and kernels that spin until others have been launched.
//
// CUDA promises of few calls that they do not wait for a device, or for a thread that waits for one. So a call that may block, while a
// kernel spins that another launch must end, is reported: the launch may have to wait for the call.
#pragma once

#include <cstdint>
#include <string>

namespace dp::simt {

// Called by every call that may block, before it does anything. `call`: its name. It takes a while where kernels can spin, so that other
// threads get to launch some. Where Simulation::log_blocking_calls is set, for take_blocking_calls().
void may_block(const std::string& call);
// For that: work was enqueued that waits for another device.
void log_exchange();
std::uint64_t blocking_calls();  // so far, of the process

// For libraries with kernels that spin, by any key of theirs: "all_reduce of 20 float32 (communicator 1) on cuda:1, which waits for
// cuda:0". Empty: none of this key does any more.
void set_spinning(const void* key, const std::string& what);
void spinners_changed(int by);  // objects of libraries that have such kernels

void forget_driver();  // before a case, and after

}  // namespace dp::simt
