// Runs a dp_train in which one replica or rank stalls forever.
#pragma once

#include <chrono>
#include <string>

#include "apps/run_program.h"
#include "support/temporary_folder.h"

namespace dp::test {

// Longest time to exit with --timeout 2 on an idle machine. Programs with a sanitizer are slow, also at exit.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr double kLongestEnd = 20;
#else
inline constexpr double kLongestEnd = 4;
#endif

struct Stalled {
  Outcome outcome;
  double seconds = 0;  // since about the start of the stall
  double whole = 0;    // since the start of the program
};

// Worker `device` stalls in `phase` of step 2; --timeout is 2. It counts only during the stall, while all others wait
// (DP_FAIL_GATE).
inline Stalled run_stalled(const std::vector<std::string>& engine, int device, const std::string& phase) {
  const TemporaryFolder temp;
  std::vector<std::string> arguments{"--dataset",
                                     "synthetic",
                                     "--model",
                                     "mlp",
                                     "--cpu",
                                     "2",
                                     "-b",
                                     "16",
                                     "--max-steps",
                                     "4",
                                     "-p",
                                     "1",
                                     "--timeout",
                                     "2",
                                     "--output-dir",
                                     "run",
                                     "--threads-per-replica",
                                     "1"};
  arguments.insert(arguments.end(), engine.begin(), engine.end());
  const auto begin = std::chrono::steady_clock::now();
  Program program(arguments, temp.path(),
                  {"DP_FAIL=stall:" + phase + ":dev" + std::to_string(device) + ":step2:600000ms",
                   StallGate(temp / "gate").variable(), "TSAN_OPTIONS=report_thread_leaks=0"});
  program.wait_for("[1/4]");  // the report of step 1
  const auto start = std::chrono::steady_clock::now();
  Stalled stalled{program.wait()};
  const auto end = std::chrono::steady_clock::now();
  stalled.seconds = std::chrono::duration<double>(end - start).count();
  stalled.whole = std::chrono::duration<double>(end - begin).count();
  return stalled;
}

}  // namespace dp::test
