// With any thread limit, dp_train either works or ends with its own message and exit code 4.
#include <algorithm>

#include "apps/idx_files.h"
#include "apps/run_program.h"
#include "support/catch.h"

namespace {

using namespace dp::test;

// Returns the number of threads that the run needs.
int check_fewer_and_fewer(const Words& engine) {
  const TemporaryFolder temp;
  write_tiny_mnist(temp.path());
  constexpr int kMost = 30;
  for (int threads = 0; threads < kMost; ++threads) {
    const Words arguments =
        Words{"--dataset", "mnist", "--data-path", ".", "--model", "mlp", "-b", "16", "--dry-run"} + engine;
    const Outcome outcome =
        Program(arguments, temp.path(), {"LD_PRELOAD=" DP_THREAD_LIMIT, "DP_THREADS=" + std::to_string(threads)})
            .wait();
    INFO(engine.front() << ' ' << threads << " threads: code " << outcome.code << ", signal " << outcome.signal << '\n'
                        << outcome.err);
    CHECK(outcome.signal == 0);
    if (outcome.code == 0) return threads;
    CHECK(outcome.code == 4);
    CHECK(outcome.err.find("thread") != std::string::npos);
    CHECK(outcome.err.find("could") != std::string::npos);
    CHECK(outcome.err.find("unexpected") == std::string::npos);
    CHECK(outcome.err.find("libgomp") == std::string::npos);
  }
  return kMost;
}

}  // namespace

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
TEST_CASE("threads that cannot be started end the program with exit code 4") {
  DP_SKIP("the sanitizers' runtimes start threads, and must be loaded first");
}
#else
TEST_CASE("threads that cannot be started end one process with exit code 4") {
  CHECK(check_fewer_and_fewer({"--cpu", "2", "--threads-per-replica", "2"}) >= 5);
}

TEST_CASE("threads that cannot be started end the launcher and its ranks with exit code 4") {
  CHECK(check_fewer_and_fewer({"--engine", "ddp", "--cpu", "2"}) >= 4);
}
#endif
