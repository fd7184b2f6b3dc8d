// Insufficient memory is refused before allocation, with the total over all replicas. An exact fit is accepted.
#include <fstream>

#include "dp/error.h"
#include "kernels/device/host/memory.h"
#include "support/catch.h"
#include "support/fake_system.h"
#include "support/training.h"

using namespace dp;
using namespace dp::test;

namespace {

constexpr std::size_t kKiB = 1024;

// The error's text, or an empty string on success.
template <typename Work>
std::string refusal(Work&& work) {
  try {
    work();
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::device);
    return error.what();
  }
  return "";
}

std::size_t kibibytes_for(std::size_t bytes) { return (bytes + kKiB - 1) / kKiB; }

std::size_t peak_bytes() {
  std::ifstream file("/proc/self/status");
  std::size_t kibibytes = 0;
  for (std::string word; file >> word;)
    if (word == "VmHWM:") file >> kibibytes;
  return kibibytes * kKiB;
}

std::int64_t number_in(const std::string& text, const std::string& before) {
  const auto at = text.rfind(before);
  REQUIRE(at != std::string::npos);
  return std::stoll(text.substr(at + before.size()));
}

TEST_CASE("replicas whose weights together exceed memory are rejected before the first is made") {
  const Model model = models::mlp({.hidden = {1024}});
  const std::size_t each = [&] {
    DataParallel net(model, on_cpus(1));
    const MemoryUse use = net.memory_use(0);
    return kernels::resident_bytes(use.weights) + kernels::resident_bytes(use.gradients);
  }();
  for (const int replicas : {1, 2, 40}) {
    INFO(replicas << " replicas");
    const FakeSystem system;
    system.set_available(kibibytes_for(each * static_cast<std::size_t>(replicas)));
    CHECK(refusal([&] { DataParallel(model, on_cpus(replicas)); }).empty());
    system.set_available(kibibytes_for(each * static_cast<std::size_t>(replicas)) - 1);
    const std::size_t before = peak_bytes();
    const std::string text = refusal([&] { DataParallel(model, on_cpus(replicas)); });
    CHECK(peak_bytes() - before < 2 * each);
    CHECK_THAT(text, Catch::Contains("weights, gradients and statistics of " + std::to_string(replicas) + " replica") &&
                         Catch::Contains("MemAvailable of /proc/meminfo"));
    if (replicas == 1) CHECK_THAT(text, Catch::Contains("not even one fits"));
    if (replicas == 1) continue;
    const std::int64_t fit = number_in(text, "use no more than ");
    CHECK(fit == (replicas == 2 ? 1 : 35));  // suggestions leave a tenth of the free memory unused
    CHECK(refusal([&] { DataParallel(model, on_cpus(static_cast<int>(fit))); }).empty());
  }
}

TEST_CASE("a control group's limit counts like the machine's") {
  const FakeSystem system;
  system.set_available(64'000'000);
  system.write("/proc/self/cgroup", "0::/job\n");
  system.write("/sys/fs/cgroup/job/memory.max", "3000000\n");
  system.write("/sys/fs/cgroup/job/memory.stat", "anon 500000\nfile 2000000\nshmem 0\n");
  const Model model = models::mlp();  // 0.8 MB of weights and gradients per replica
  CHECK(refusal([&] { DataParallel(model, on_cpus(3)); }).empty());
  CHECK_THAT(refusal([&] { DataParallel(model, on_cpus(4)); }),
             Catch::Contains("/sys/fs/cgroup/job/memory.max") && Catch::Contains("use no more than 2 replicas"));
}

// The smallest limit that prepare() accepts equals the memory that it then allocates.
TEST_CASE("activations and optimizer state that exceed memory are rejected with the batch size that fits") {
  const Model model = small_convnet();
  for (const int shards : {0, 4})
    for (const int replicas : {1, 2}) {
      INFO(replicas << " replicas, shards " << shards);
      DataParallelOptions options = on_cpus(replicas);
      options.logical_shards = shards;
      const auto held = [&](const DataParallel& net) {
        std::size_t bytes = 0;
        for (int r = 0; r < replicas; ++r) {
          const MemoryUse use = net.memory_use(r);
          bytes += kernels::resident_bytes(use.activations + use.workspace) + kernels::resident_bytes(use.optimizer);
        }
        return bytes;
      };
      std::size_t need = 0;
      {
        DataParallel net(model, options);
        net.prepare({4096, 40}, {4096});
        need = held(net);
      }
      const FakeSystem system;
      system.set_available(kibibytes_for(need) + 4096);  // leaves room for the weights
      DataParallel net(model, options);
      system.set_available(kibibytes_for(need) - 1);
      const std::string text = refusal([&] { net.prepare({4096, 40}, {4096}); });
      CHECK_THAT(text,
                 Catch::Contains("a batch of 4096: activations and optimizer state of " + std::to_string(replicas)));
      CHECK(net.memory_use(0).activations == 0);
      const std::int64_t fits = number_in(text, "; a batch of ");
      CHECK(fits > 1000);  // suggestions leave a tenth of the free memory unused, and allow for rounding up
      CHECK(fits < 4096);
      CHECK(refusal([&] { net.prepare({fits}, {fits}); }).empty());  // a refused call changes nothing
      net.train_step(random_batch(model, 8), Sgd{.lr = 0.01f, .momentum = 0.9f});
      net.take_stats();

      DataParallel other(model, options);
      system.set_available(kibibytes_for(need));
      CHECK(refusal([&] { other.prepare({4096, 40}, {4096}); }).empty());
    }
}

TEST_CASE("state of another optimizer counts as free memory, because the new state replaces it") {
  const Model model = models::mlp({.hidden = {1024}});
  const auto arena_of = [&](std::int64_t rows) {
    DataParallel net(model, on_cpus(1));
    net.prepare({rows});
    const MemoryUse use = net.memory_use(0);
    return kernels::resident_bytes(use.activations + use.workspace);
  };
  const std::size_t more = arena_of(4096) - arena_of(8);
  const FakeSystem system;
  system.set_available(1'000'000);
  DataParallel net(model, on_cpus(1));
  net.prepare({8}, {}, {}, {}, Sgd{.momentum = 0.9f});
  const std::size_t slot = net.memory_use(0).optimizer;
  const std::size_t need = more + kernels::resident_bytes(2 * slot) - kernels::resident_bytes(slot);
  REQUIRE(more > slot);  // the faked free memory does not grow when the old state is freed
  system.set_available(kibibytes_for(need) - 1);
  CHECK_THAT(refusal([&] { net.prepare({4096}, {}, {}, {}, AdamW{}); }), Catch::Contains("out of memory"));
  CHECK(net.memory_use(0).optimizer == slot);
  system.set_available(kibibytes_for(need));
  CHECK(refusal([&] { net.prepare({4096}, {}, {}, {}, AdamW{}); }).empty());
  CHECK(net.memory_use(0).optimizer == 2 * slot);
}

TEST_CASE("a step without prepare is checked against the sum of its replicas too") {
  const Model model = small_convnet();
  const FakeSystem system;
  system.set_available(64'000);
  DataParallel net(model, on_cpus(4));
  system.set_available(64);
  CHECK_THAT(refusal([&] { net.train_step(random_batch(model, 64), Sgd{.lr = 0.01f}); }),
             Catch::Contains("a batch of 64: ") && Catch::Contains("of 4 replicas need"));
  system.set_available(64'000);
  net.train_step(random_batch(model, 64), Sgd{.lr = 0.01f});
  CHECK(net.take_stats().samples == 64);
}

}  // namespace
