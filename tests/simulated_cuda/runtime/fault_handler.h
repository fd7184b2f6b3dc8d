// Turns a fault in the memory of a simulated device into a one-line message (which code, which memory) and exit status
// 99.
#pragma once

namespace dp::simt {

// Does nothing if it is installed. Call it often: test programs install their own handlers for every test case.
void install_fault_handler();
// Gives a thread of the simulation an alternative signal stack, so that a stack overflow can be handled.
void give_thread_a_fault_stack();

}  // namespace dp::simt
