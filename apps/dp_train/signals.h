// Ctrl-C and termination: the first asks the run to stop after its step, the second leaves at once.
#pragma once

#include <atomic>

namespace dp_train {

// Installs the handlers; the flag holds the number of the signal that came. SIGPIPE is ignored: a closed terminal or
// pager does not end a training run.
const std::atomic<int>& watch_signals();
// From now on no handler runs on a thread that computes: oneDNN's generated code moves the stack pointer into its workspace,
// and a handler's frame would be written over what lies there. Call it before there are other threads; they inherit it.
void keep_signals_from_threads();
void tell_of_signals(bool tell);  // whether a first signal is answered with a line

}  // namespace dp_train
