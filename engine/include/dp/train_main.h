// The whole of dp_train as a function: its options, subcommands, signals, engines, run folders and reports. Programs
// that call it link dp::train.
#pragma once

namespace dp {

// Runs the command line of dp_train and returns the exit code of the process. Call it once, from main(), after
// models::add(), datasets::add(), losses::add() and metrics::add(), and before the program starts other threads.
// Messages begin with the name of the program's file. Example: docs/guide/examples/own_network.md.
int train_main(int argc, char** argv);

}  // namespace dp
