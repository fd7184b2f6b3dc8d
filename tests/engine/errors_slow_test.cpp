// Repeated failures with eight replicas.
#include <chrono>
#include <cstdlib>
#include <filesystem>

#include "dp/error.h"
#include "support/catch.h"
#include "support/patience.h"
#include "support/training.h"

using namespace dp;
using namespace dp::test;

namespace {

std::ptrdiff_t thread_count() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"), std::filesystem::directory_iterator{});
}

}  // namespace

TEST_CASE("two hundred failures of one of eight replicas leak no thread and end in time") {
  const Model model = small_convnet();
  setenv("DP_FAIL", "throw:backward:dev5:step0", 1);
  std::ptrdiff_t threads = 0;
  for (int i = 0; i < 200; ++i) {
    const auto start = std::chrono::steady_clock::now();
    DataParallel net(model, on_cpus(8));
    CHECK_THROWS_AS(net.train_step(random_batch(model, 16), Sgd{}), Error);
    CHECK(in_time(start, 1));
    if (i == 0) threads = thread_count();
  }
  CHECK(becomes([&] { return thread_count() <= threads; }));  // a joined thread may be listed a little longer
  unsetenv("DP_FAIL");
}
