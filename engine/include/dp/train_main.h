// A program of one's own with all that dp_train has: options, subcommands, signals, engines, run folders and reports.
// Link dp::train.
#pragma once

namespace dp {

// Runs the command line of dp_train and returns the exit code of the process. Call it once, from main(), after
// models::add() and datasets::add(), and before other threads are started. Messages have the name of the program's
// file. See docs/guide/examples/own_network.md.
int train_main(int argc, char** argv);

}  // namespace dp
