// Failing replicas on simulated GPUs: errors are reported with their replica and phase, and all resources are released.
#include "cuda/engine/failing_steps.h"

#include <cstdlib>

#include "support/sanitized.h"

using namespace dp;
using namespace dp::test;

TEST_CASE("simulated GPUs: an exception in any phase on any replica is rethrown with its place, without leaks") {
  for (const int gpus : cases({1, 2, 4}, {2})) {
    SimulatedGpus machine(gpus);
    for (const char* phase : {"scatter", "forward", "backward", "reduce", "update", "broadcast"})
      for (int replica = 0; replica < gpus; ++replica) {
        if (gpus == 1 && std::string(phase) == "broadcast") continue;  // no other device to copy to
        setenv("DP_FAIL", (std::string("throw:") + phase + ":dev" + std::to_string(replica) + ":step1").c_str(), 1);
        ErrorCode code{};
        const std::string text = failure_of(on_gpus(gpus, gpus), code);
        unsetenv("DP_FAIL");
        CHECK_THAT(text, Catch::Contains("replica " + std::to_string(replica) + " (cuda:" + std::to_string(replica) +
                                         ") failed in " + phase + " of step 1"));
        CHECK(code == ErrorCode::device);
        check_nothing_left();
      }
    ErrorCode code{};
    CHECK(failure_of(on_gpus(gpus, gpus), code).empty());
  }
}

TEST_CASE("simulated GPUs: a failure of any allocation reports the bytes requested and free, without leaks") {
  SimulatedGpus machine(2);
  int failed = 0;
  for (int k = 1;; ++k) {
    simt::simulation().fail_allocation = k;
    ErrorCode code{};
    const std::string text = failure_of(on_gpus(2, 2), code);
    simt::simulation().fail_allocation = 0;
    check_nothing_left();
    if (text.empty()) break;
    ++failed;
    INFO("allocation " << k);
    CHECK(code == ErrorCode::device);
    CHECK_THAT(text, Catch::Contains("out of memory on cuda:") && Catch::Contains("bytes requested"));
  }
  CHECK(failed > 10);
}

TEST_CASE("simulated GPUs: a failure of any pinned allocation leaves no leaks") {
  SimulatedGpus machine(2, simt::Peer::none);
  int failed = 0;
  for (int k = 1;; ++k) {
    simt::simulation().fail_host_allocation = k;
    ErrorCode code{};
    const std::string text = failure_of(on_gpus(2, 2), code);
    simt::simulation().fail_host_allocation = 0;
    check_nothing_left();
    if (text.empty()) break;
    ++failed;
    CHECK(code == ErrorCode::device);
    CHECK_THAT(text, Catch::Contains("pinned memory"));
  }
  CHECK(failed > 2);
}

TEST_CASE("simulated GPUs: the default timeout is 300 s on GPUs and off on CPUs") {
  SimulatedGpus machine(2);
  const auto timeout = [](const DataParallelOptions& options) {
    return DataParallel(small_convnet(), options).options().timeout_seconds;
  };
  DataParallelOptions options = on_gpus(2, 2);
  CHECK(timeout(options) == 300);
  options.timeout_seconds = 0;
  CHECK(timeout(options) == 0);
  options.devices = cpus(2);
  CHECK(timeout(options) == 0);
  options.timeout_seconds = {};
  CHECK(timeout(options) == 0);
}

TEST_CASE("simulated GPUs: a device that does not exist is rejected") {
  SimulatedGpus machine(2);
  DataParallelOptions options;
  options.devices = gpus({0, 2});
  ErrorCode code{};
  CHECK_THAT(failure_of(options, code), Catch::Contains("cuda:2 does not exist: there are 2 GPUs"));
  CHECK(code == ErrorCode::usage);
  options = on_gpus(2, 2);
  options.comm = Comm::host;
  CHECK_THAT(failure_of(options, code), Catch::Contains("p2p") && Catch::Contains("host"));
}

TEST_CASE("simulated GPUs: replicas of one GPU that together exceed its memory are rejected before any allocation") {
  SimulatedGpus machine(2);
  const Model model = models::mlp({.input = {2, 12, 12}, .hidden = {512, 512, 512}, .classes = 7});
  const MemoryUse use = estimate_memory(model, on_gpus(1, 1), {8}).front();
  const std::size_t weights = use.weights + use.gradients;
  const auto text_of = [](auto&& work) {
    try {
      work();
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::device);
      return std::string(error.what());
    }
    return std::string();
  };
  simt::simulation().device_memory = weights * 7 / 2;
  CHECK_THAT(text_of([&] { DataParallel(model, on_gpus(8, 2)); }),
             Catch::Contains("weights, gradients and statistics of 4 replicas need") && Catch::Contains("(cuda:0)") &&
                 Catch::Contains("use no more than 3 replicas"));
  check_nothing_left();
  CHECK(text_of([&] { DataParallel(model, on_gpus(6, 2)); }) == "");

  simt::simulation().device_memory = std::size_t{1} << 30;
  {
    DataParallel net(model, on_gpus(2, 1));
    simt::simulation().device_memory = 2 * weights + (std::size_t{4} << 20);
    CHECK_THAT(text_of([&] { net.prepare({2048}); }),
               Catch::Contains("a batch of 2048: activations and optimizer state of 2 replicas need") &&
                   Catch::Contains("(cuda:0)"));
    simt::simulation().device_memory = std::size_t{1} << 30;
    CHECK(text_of([&] { net.prepare({16}); }).empty());
    net.train_step(random_batch(model, 16), Sgd{.lr = 0.01f, .momentum = 0.9f});
    CHECK(net.take_stats().samples == 16);
  }
  check_nothing_left();
}
