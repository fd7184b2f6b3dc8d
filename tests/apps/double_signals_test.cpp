// The same signal twice, as launchers and service managers send it: one request, one checkpoint. A few in the ordinary tests, 200 in the
// slow ones.
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <random>
#include <thread>

#include "apps/idx_files.h"
#include "apps/run_program.h"
#include "support/catch.h"

using namespace dp::test;

TEST_CASE("signals: the same signal twice within a second leaves a checkpoint every time") {
  std::mt19937 random(11);
  for (int i = 0; i < DP_DOUBLE_SIGNALS; ++i) {
    const TemporaryFolder temp;
    write_tiny_mnist(temp.path());
    const int number = i % 2 == 0 ? SIGTERM : SIGINT;
    Program program({"--dataset", "mnist", "--data-path",           ".",  "--model",  "mlp",     "-b",   "16",
                     "--cpu",     "2",     "--threads-per-replica", "1",  "--epochs", "1000000", "--lr", "0",
                     "-p",        "1",     "--output-dir",          "run"},
                    temp.path(), {"DP_FAIL=stall:backward:dev0:30ms"});  // most signals come within a step
    program.wait_for("[1/4]");
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 60));
    ::kill(program.id(), number);
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 40));
    ::kill(program.id(), number);
    const Outcome outcome = program.wait();
    INFO("run " << i << ": " << outcome.err);
    REQUIRE(outcome.code == 128 + number);
    REQUIRE(std::filesystem::exists(temp / "run/checkpoints/last/manifest.json"));
  }
}
