// DP_MEMORY_LIMIT: CPU replicas with exactly the memory that they need, and with one byte less.
#include <fmt/format.h>

#include <cstdlib>
#include <functional>

#include "dp/error.h"
#include "engine/step/memory/memory_room.h"
#include "kernels/device/host/memory.h"
#include "support/catch.h"
#include "support/training.h"

using namespace dp;
using namespace dp::test;
using engine::in_units;

namespace {

class ReplicaLimit {
 public:
  explicit ReplicaLimit(std::size_t bytes) {  // 17 digits name every double
    ::setenv("DP_MEMORY_LIMIT", fmt::format("{:.17g}", static_cast<double>(bytes) / (1 << 20)).c_str(), 1);
  }
  ~ReplicaLimit() { ::unsetenv("DP_MEMORY_LIMIT"); }
  ReplicaLimit(const ReplicaLimit&) = delete;
  ReplicaLimit& operator=(const ReplicaLimit&) = delete;
};

std::string refusal_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::device);
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("replica limit: weights and gradients that exceed it by a byte are refused") {
  const Model model = small_convnet();
  const std::size_t need = [&] {
    const MemoryUse use = DataParallel(model, on_cpus(1)).memory_use(0);
    return kernels::resident_bytes(use.weights) + kernels::resident_bytes(use.gradients);
  }();
  for (const int replicas : {1, 3}) {
    {
      const ReplicaLimit exact(need);
      CHECK(refusal_of([&] { DataParallel(model, on_cpus(replicas)); }).empty());
    }
    const ReplicaLimit less(need - 1);
    CHECK(refusal_of([&] { DataParallel(model, on_cpus(replicas)); }) ==
          "out of memory: weights, gradients and statistics need " + in_units(need) +
              " on device 0, but DP_MEMORY_LIMIT leaves " + in_units(need - 1) +
              "; not even one fits: use a smaller model, or use more pipeline stages");
  }
}

TEST_CASE("replica limit: the memory of a batch is added to the memory that the replica holds") {
  const Model model = small_convnet();
  for (const int replicas : {1, 2}) {
    INFO(replicas << " replicas");
    const auto use_after = [&](std::int64_t rows) {
      DataParallel net(model, on_cpus(replicas));
      if (rows > 0) net.prepare({rows}, {rows});
      return net.memory_use(0);
    };
    const std::size_t held = use_after(0).total();
    const MemoryUse use = use_after(4096);
    const std::size_t need =
        kernels::resident_bytes(use.activations + use.workspace) + kernels::resident_bytes(use.optimizer);
    DataParallel net(model, on_cpus(replicas));
    const auto refusal = [&] { return refusal_of([&] { net.prepare({4096}, {4096}); }); };
    const auto text = [&](std::size_t left) {
      return "out of memory: a batch of 4096: activations and optimizer state need " + in_units(need) +
             " on device 0, but DP_MEMORY_LIMIT leaves " + in_units(left) + "; ";
    };
    {
      const ReplicaLimit less(held + need - 1);
      CHECK_THAT(refusal(), Catch::StartsWith(text(need - 1) + "a batch of ") &&
                                Catch::EndsWith(" fits, or use more pipeline stages"));
    }
    {
      const ReplicaLimit nothing_left(held / 2);
      CHECK(refusal() == text(0) + "use fewer replicas: no batch fits, or use more pipeline stages");
    }
    CHECK(net.memory_use(0).activations == 0);
    const ReplicaLimit exact(held + need);
    CHECK(refusal().empty());
    CHECK(net.memory_use(0).total() == use.total());
  }
}
