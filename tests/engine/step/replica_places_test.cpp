// Where a replica stores the data of its items, how it waits for earlier steps, and its calls of the device.
#include <array>
#include <atomic>
#include <thread>

#include "dp/dataset.h"
#include "engine/step/single_replica.h"
#include "kernels/device/host/host_context.h"
#include "kernels/device/reference/reference_op.h"
#include "support/catch.h"

using namespace dp;
using namespace dp::engine;
using namespace dp::test;

namespace {

struct Calls {
  std::vector<std::size_t> reserved, peers;  // bytes
  std::vector<std::string> ranges;           // names; "end"
};

// A reference device that cannot read host memory and records calls.
class Recording final : public kernels::HostContext {
 public:
  explicit Recording(Calls& calls) : HostContext({DeviceKind::reference, 0}, discrete()), calls_(calls) {}
  DType compute_type() const override { return DType::f64; }
  std::unique_ptr<kernels::Op> make_op(const kernels::OpDesc& desc) override {
    return kernels::reference::make_op(desc);
  }
  kernels::Layout plain_layout(const Shape& shape, DType type) override {
    return kernels::reference::plain_layout(shape, type);
  }
  kernels::Layout with_type(const kernels::TensorDesc& tensor, DType type) override {
    return plain_layout(tensor.shape, type);
  }
  void reserve_copies(std::size_t bytes) override { calls_.reserved.push_back(bytes); }
  std::unique_ptr<kernels::Buffer> allocate_for_peers(std::size_t bytes) override {
    calls_.peers.push_back(bytes);
    return HostContext::allocate_for_peers(bytes);
  }
  void begin_range(const char* name) override { calls_.ranges.emplace_back(name); }
  void end_range() override { calls_.ranges.emplace_back("end"); }

 private:
  static kernels::ContextOptions discrete() {
    kernels::ContextOptions options;
    options.discrete_memory = true;
    return options;
  }
  Calls& calls_;
};

}  // namespace

TEST_CASE("replica: items are assigned to the lanes cyclically, and saved inputs are stored behind the lanes") {
  Single replica({.stage = 1, .micro_batches = 4, .lanes = 2, .saved_inputs = 3});
  const Shape shape{2, 2, 4, 4};
  constexpr std::size_t kInput = 2 * 32 * 8;
  const kernels::TensorDesc input{shape, DType::f64, replica->context().plain_layout(shape, DType::f64)};
  const Plan& plan = replica->runner.plan({.batch = 2, .input = input});
  const std::size_t lane = (plan.arena_bytes() + plan.workspace_bytes() + 63) / 64 * 64;
  REQUIRE(replica->runner.activation_arena()->bytes() == 2 * lane + 3 * kInput);
  auto* const start = static_cast<std::byte*>(replica->runner.activation_arena()->data());
  for (std::size_t item = 0; item < 4; ++item) {
    const auto number = static_cast<int>(item);
    CHECK(replica->runner.plan_of(number) == nullptr);  // no rows
    CHECK(replica->runner.address(number, {Space::activation}) == start + item % 2 * lane);
    CHECK(replica->runner.address(number, {Space::activation, 64}) == start + item % 2 * lane + 64);
    CHECK(replica->runner.saved_input(number) == start + 2 * lane + item % 3 * kInput);
  }
}

TEST_CASE("replica: only a saved input needs memory for saved inputs") {
  const Shape shape{2, 2, 4, 4};
  for (const int saved : {0, 1})
    for (const bool later : {false, true}) {
      Single replica({.stage = later ? 1 : 0, .saved_inputs = saved});
      PlanOptions options{.batch = 2};
      if (later) options.input = {shape, DType::f64, replica->context().plain_layout(shape, DType::f64)};
      const Plan& plan = replica->runner.plan(options);
      const std::size_t lane = (plan.arena_bytes() + plan.workspace_bytes() + 63) / 64 * 64;
      CHECK(replica->runner.activation_arena()->bytes() == lane + (saved == 1 && later ? 512 : 0));
    }
}

TEST_CASE("replica: device-resident images count as memory, with room for every item of the largest batch") {
  Single replica({.micro_batches = 3}, kernels::backend(DeviceKind::cpu).open({DeviceKind::cpu, 0}, {}));
  const auto set =
      std::make_shared<ImageSet>(ImageSet{Tensor(Shape{7, 2, 4, 4}, DType::u8), {{0.5f, 0.5f}, {1.0f, 1.0f}}, {}});
  const std::size_t before = replica->device.memory_use().other + sizeof(kernels::GatherInputs) + 4 * sizeof(float);
  const std::uint64_t allocations = replica->device.allocations();
  constexpr std::size_t kRow = 3 * 32 * sizeof(float);
  replica->runner.upload_images({set}, 2);
  CHECK(replica->device.memory_use().other == before + 2 * kRow);
  replica->runner.upload_images({set}, 5);
  CHECK(replica->device.memory_use().other == before + 5 * kRow);
  replica->runner.upload_images({set}, 3);
  CHECK(replica->device.memory_use().other == before + 5 * kRow);
  CHECK(replica->device.allocations() == allocations + 2);
}

TEST_CASE("replica: at most two steps are in progress") {
  kernels::ContextOptions device;
  device.threaded_streams = true;
  Single replica({}, device);
  std::array<std::atomic<bool>, 4> allowed{}, done{};
  std::vector<std::vector<PlanStep>> steps;
  for (std::size_t i = 0; i < allowed.size(); ++i)
    steps.push_back(step_of([&, i] {
      while (!allowed[i]) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      done[i] = true;
    }));
  for (std::size_t i = 0; i < steps.size(); ++i) {
    replica->runner.run(0, steps[i]);
    replica->runner.throttle();
    if (i > 0) CHECK(done[i - 1]);
    CHECK_FALSE(done[i]);
    allowed[i] = true;
  }
  replica->compute().synchronize();
  CHECK(done.back());
}

TEST_CASE("replica: inputs that must be uploaded count as memory, for every item of the largest batch") {
  Calls calls;
  Single replica({.micro_batches = 2}, std::make_unique<Recording>(calls));
  const std::size_t before = replica->device.memory_use().other;
  const std::uint64_t allocations = replica->device.allocations();
  constexpr std::size_t kItem = 512 + 64 + 64;  // four rows: images, labels, samples
  replica->runner.plan({.batch = 4});
  CHECK(replica->device.memory_use().other == before + 3 * 2 * kItem);
  CHECK(replica->device.allocations() == allocations + 2);  // the arena and the inputs
  replica->runner.plan({.batch = 2});
  CHECK(replica->device.memory_use().other == before + 3 * 2 * kItem);
  CHECK(replica->device.allocations() == allocations + 2);

  CHECK(calls.reserved.empty());
  replica->runner.reserve_copies(10, /*resident=*/false);
  replica->runner.reserve_copies(10, /*resident=*/true);
  CHECK(calls.reserved == std::vector<std::size_t>{10 * 32 * 4, 10 * 8});
}

TEST_CASE("replica: a later stage uploads no images") {
  Calls calls;
  Single replica({.stage = 1}, std::make_unique<Recording>(calls));
  const std::size_t before = replica->device.memory_use().other;
  replica->runner.plan({.batch = 4});
  CHECK(replica->device.memory_use().other == before + 3 * (64 + 64));
  replica->runner.reserve_copies(10, /*resident=*/false);
  CHECK(calls.reserved == std::vector<std::size_t>{80});
}

TEST_CASE("replica: describing a plan changes no addresses") {
  Single replica({.lanes = 2});
  const Plan &first = replica->runner.plan({.batch = 3}),
             &second = replica->runner.plan({.batch = 2, .training = false});
  const std::vector<std::int32_t> labels(3);
  replica->runner.bind(0, &first, {.labels = labels.data(), .rows = 3});
  const std::byte* const activations = replica->runner.address(0, {Space::activation});
  CHECK(replica->runner.describe(second) == second.describe());
  CHECK(replica->runner.address(0, {Space::activation}) == activations);
  CHECK(replica->runner.address(0, {Space::labels}) == reinterpret_cast<const std::byte*>(labels.data()));
  CHECK(replica->runner.plan_of(0) == &first);
}

TEST_CASE("replica: memory that replicas exchange is allocated for peers") {
  Calls calls;
  Single replica({.local_shards = 2, .shards = 2}, std::make_unique<Recording>(calls));
  const Arenas::Sizes& sizes = replica.sizes();
  CHECK(calls.peers ==
        std::vector<std::size_t>{sizes.values, sizes.gradients, sizes.running_statistics, sizes.moments});
  calls.peers.clear();
  replica->runner.plan({.batch = 2});
  for (const auto kind : {&MemoryUse::average, &MemoryUse::activations, &MemoryUse::workspace, &MemoryUse::other})
    replica->device.allocate(64, kind);
  CHECK(calls.peers.empty());
  std::size_t bytes = 64;
  for (const auto kind : {&MemoryUse::weights, &MemoryUse::gradients, &MemoryUse::optimizer, &MemoryUse::statistics}) {
    replica->device.allocate(bytes, kind);
    CHECK(calls.peers.back() == bytes);
    bytes += 64;
  }
  CHECK(calls.peers.size() == 4);
}

TEST_CASE("replica: the ranges of a profiler are step, phase and layer, and nest") {
  Calls calls;
  Single replica({}, std::make_unique<Recording>(calls));
  const std::vector<PlanStep> steps = step_of([] {});
  using Names = std::vector<std::string>;
  const auto taken = [&] { return std::exchange(calls.ranges, {}); };
  replica->clock.enter(Phase::scatter);
  CHECK(taken().empty());  // only timed steps have phases
  replica->runner.run(0, steps);
  CHECK(taken() == Names{"layer op", "end"});
  replica->clock.begin(0);
  replica->clock.enter(Phase::forward);
  replica->runner.run(0, steps);
  replica->clock.visit(Phase::update);
  replica->clock.enter(Phase::backward);
  CHECK(taken() == Names{"step", "forward", "layer op", "end", "end", "backward"});
  replica->clock.end();
  CHECK(taken() == Names{"end", "end"});
  replica->clock.begin(1);
  replica->clock.end();
  CHECK(taken() == Names{"step", "end"});
}
