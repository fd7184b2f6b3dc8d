// Turns a fault in the memory of a simulated device into one line that says who touched what, and exit status 99.
#pragma once

namespace dp::simt {

// Unless it is installed. Test programs put handlers of their own in its place for every case, so this is called often.
void install_fault_handler();
// For a thread of the simulation: a stack on which a fault can be handled when the thread's own is exhausted.
void give_thread_a_fault_stack();

}  // namespace dp::simt
