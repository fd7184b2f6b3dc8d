// Finds the measured programs and the plugins.
#pragma once

#include <string>

namespace dp_bench {

// The path of a measured program or script. Searches DP_BENCH_PATH, this program's folder, ../../benchmarks (build
// tree) and ../lib/dp. dp::Error(usage) with the searched folders.
std::string find_program(const std::string& name);

// Sets DP_PLUGIN_PATH to dp_train's folder, for this process and its children, unless it is set. In the build tree the
// plugins are there, and not in the folder of the program that loads them.
void point_to_plugins();

}  // namespace dp_bench
