// Process limits: the program ends with its own error, never with a crash in a library.
#include <algorithm>

#include "apps/idx_files.h"
#include "apps/run_program.h"
#include "support/catch.h"

namespace {

using namespace dp::test;

void check_limited(const char* kibibytes, const std::vector<std::string>& devices, bool may_fit = false) {
  const TemporaryFolder temp;
  write_tiny_mnist(temp.path());
  std::vector<std::string> arguments{"--dataset", "mnist", "--data-path", ".", "--dry-run", "-b", "64"};
  arguments.insert(arguments.end(), devices.begin(), devices.end());
  INFO(kibibytes << " KiB, " << devices[1] << " replicas");
  const Outcome outcome = run_under_limit(kibibytes, arguments, temp.path());
  INFO("stderr: " << outcome.err);
  CHECK(outcome.signal == 0);
  if (may_fit && outcome.code == 0) return;
  CHECK(outcome.code == 4);
  CHECK(outcome.err.starts_with("dp_train: error: "));
  CHECK(outcome.err.find("ulimit") != std::string::npos);
  CHECK(std::count(outcome.err.begin(), outcome.err.end(), '\n') == 1);
}

TEST_CASE("an address space too small for the replicas is a device error", "[processes]") {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  DP_SKIP("the sanitizers' shadow memory does not fit in the limits");
#endif
  for (const char* limit : {"300000", "800000", "1200000", "1600000"}) check_limited(limit, {"--cpu", "64"});
  for (const char* limit : {"1200000", "2600000", "3000000"}) check_limited(limit, {"--cpu", "256"});
  for (const char* limit : {"2200000", "2600000", "2800000", "3000000"}) check_limited(limit, {"--cpu", "64"}, true);
  for (const char* limit : {"800000", "1700000"}) check_limited(limit, {"--cpu", "16", "--threads-per-replica", "16"});
}

}  // namespace
