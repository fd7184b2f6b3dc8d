// Where the measured programs are.
#pragma once

#include <string>

namespace dp_bench {

// The path of a measured program or script, looked for in DP_BENCH_PATH, beside this program, in the build tree and in
// ../lib/dp. dp::Error(usage) naming the places.
std::string find_program(const std::string& name);

}  // namespace dp_bench
