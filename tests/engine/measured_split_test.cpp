// measure_split() on devices with little memory, and where it is not allowed.
#include "dp/error.h"
#include "dp/process_group.h"
#include "kernels/device/host/memory.h"
#include "support/catch.h"
#include "support/fake_system.h"
#include "support/training.h"

using namespace dp;
using namespace dp::test;

namespace {

// Few weights and large activations.
Model thin_net() {
  ModelBuilder m("thin_net", Shape{1, 64, 64});
  const auto x = m.relu(m.conv2d("conv", m.input(), {.out_channels = 8, .padding = 1}));
  return m.build(m.linear("fc", m.flatten(m.global_avg_pool2d(x)), {.out_features = 2}));
}

// KiB that a step on `rows` rows needs on two replicas together, without optimizer state.
std::size_t kibibytes_for(const Model& model, std::int64_t rows) {
  DataParallel net(model, on_cpus(2));
  net.prepare({rows});
  std::size_t bytes = 0;
  for (int replica = 0; replica < 2; ++replica)
    bytes += kernels::resident_bytes(net.memory_use(replica).activations + net.memory_use(replica).workspace);
  return (bytes + 1023) / 1024;
}

}  // namespace

TEST_CASE("measured split: a batch that exceeds memory is halved until it fits") {
  const Model model = thin_net();
  const std::size_t for_eight = kibibytes_for(model, 8), for_four = kibibytes_for(model, 4);
  REQUIRE(for_eight < kibibytes_for(model, 16));
  const FakeSystem system;
  system.set_available(for_eight);
  const std::vector<int> weights = measure_split(model, on_cpus(2), 32);
  REQUIRE(weights.size() == 2);
  CHECK(weights[0] >= 1);
  CHECK(weights[1] >= 1);
  // Two rows per replica are the least.
  system.set_available(for_four - 1);
  try {
    measure_split(model, on_cpus(2), 32);
    FAIL("accepted");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::device);
    CHECK_THAT(error.what(), Catch::StartsWith("out of memory: a batch of 4: activations"));
  }
}

TEST_CASE("measured split: it is refused if results must not depend on timings or all shards are equal") {
  const Model model = small_convnet();
  const auto refused = [&](const DataParallelOptions& options) {
    try {
      measure_split(model, options, 16);
      FAIL("accepted");
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::usage);
      CHECK(std::string(error.what()) ==
            "a split by measured speed requires one process, no logical shards, no pipeline, and no --deterministic");
    }
  };
  DataParallelOptions options = on_cpus(1);
  options.process_group = ProcessGroup::join({});
  refused(options);
  options = on_cpus(2);
  options.logical_shards = 2;
  refused(options);
  options = on_cpus(2);
  options.deterministic = true;
  refused(options);
  options = on_cpus(2);
  options.pipeline.stages = 2;
  refused(options);
}

TEST_CASE("measured split: options that make replicas wait for each other do not disturb it") {
  DataParallelOptions options = on_cpus(2);
  options.split_weights = {1, 1000};  // would leave the first replica idle
  options.check_replicas = true;
  options.trace_steps = 1;
  options.batch_norm = BatchNormMode::sync;
  options.on_nonfinite = OnNonfinite::abort;
  const std::vector<int> weights = measure_split(residual_net(), options, 4);
  REQUIRE(weights.size() == 2);
  CHECK(weights[0] >= 1);
  CHECK(weights[1] >= 1);
}
