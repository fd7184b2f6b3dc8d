// Where the measured programs are.
#pragma once

#include <string>

namespace dp_bench {

// The path of a measured program or script, looked for in DP_BENCH_PATH, beside this program, in the build tree and in
// ../lib/dp. dp::Error(usage) naming the places.
std::string find_program(const std::string& name);

// Plugins are looked for beside the program that loads them; in the build tree they are dp_train's. Sets DP_PLUGIN_PATH, for this
// process and those it starts, unless it is set.
void point_to_plugins();

}  // namespace dp_bench
