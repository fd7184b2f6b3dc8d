// Tests mixed precision on CPU replicas. Training steps are compared with those of the reference backend, which rounds
// the output of each op to 16 bits, and with those of other configurations. Each test runs with emulated bfloat16. It
// also runs with bfloat16 instructions if the processor has them.
#include <cmath>
#include <functional>

#include "support/catch.h"
#include "support/emulated_bfloat16.h"
#include "support/optimizers.h"
#include "support/relative_distance.h"
#include "support/sanitized.h"
#include "support/training.h"

using namespace dp;
using namespace dp::test;

namespace {

constexpr Reduce kReductions[] = {Reduce::master, Reduce::all_reduce, Reduce::sharded};
const Sgd kSgd{.lr = 0.1f, .momentum = 0.9f, .weight_decay = 1e-3f};

// A residual network. The AMX kernels require that its numbers of channels are multiples of 32.
Model wide_net() {
  ModelBuilder m("wide_net", Shape{3, 4, 4});
  const auto conv = [&](const std::string& name, ModelBuilder::Node x, std::int64_t channels, int kernel, int stride) {
    x = m.conv2d(name, x,
                 {.out_channels = channels, .kernel = kernel, .stride = stride, .padding = kernel / 2, .bias = false});
    return m.batch_norm2d(name + ".bn", x);
  };
  auto x = m.relu(conv("conv1", m.input(), 32, 3, 1));
  x = m.relu(m.add(conv("a.conv2", m.relu(conv("a.conv1", x, 32, 3, 1)), 32, 3, 1), x));
  const auto shortcut = conv("b.downsample", x, 64, 1, 2);
  x = m.relu(m.add(conv("b.conv2", m.relu(conv("b.conv1", x, 64, 3, 2)), 64, 3, 1), shortcut));
  return m.build(m.linear("fc", m.flatten(m.global_avg_pool2d(x)), {.out_features = 6}));
}

void natively_and_emulated(const std::function<void()>& check) {
  if (kernels::has_bfloat16()) {
    INFO("native");
    check();
  }
  INFO("emulated");
  const EmulatedBfloat16 emulated;
  check();
}

DataParallelOptions low(DataParallelOptions options) {
  options.amp = Amp::bfloat16;
  return options;
}

DataParallelOptions references(int replicas) {
  DataParallelOptions options = on_reference();
  options.devices.assign(static_cast<std::size_t>(replicas), options.devices.front());
  return options;
}

std::vector<NamedTensor> stepped(const Model& model, const DataParallelOptions& options, const Batch& batch) {
  DataParallel net(model, options);
  net.train_step(batch, kSgd);
  CHECK(net.replicas_identical());
  return net.weights();
}

std::vector<NamedTensor> three_steps(const Model& model, const DataParallelOptions& options, std::int64_t rows = 11) {
  DataParallel net(model, options);
  for (std::uint64_t i = 0; i < 3; ++i) net.train_step(random_batch(model, rows, i), kSgd);
  CHECK(net.replicas_identical());
  return net.weights();
}

// Float32 rounding may move a value to its other 16-bit neighbour, and then later values differ too. So this searches
// for a batch without such a value, as tests/cuda/engine/amp_test.cpp does.
void check_step(const Model& model, std::int64_t rows, int replicas) {
  const auto origin = DataParallel(model, references(replicas)).weights();
  double least = kInfinitelyFar;
  for (std::uint64_t seed = 1; seed <= 16 && least > 2e-6; ++seed) {
    const Batch batch = random_batch(model, rows, seed);
    const auto expected = stepped(model, low(references(replicas)), batch);
    CHECK(relative_distance(expected, stepped(model, references(replicas), batch), origin) > 1e-4);  // it rounds
    std::vector<NamedTensor> first;
    for (const Reduce reduce : kReductions) {
      DataParallelOptions options = low(on_cpus(replicas));
      options.reduce = reduce;
      const auto got = stepped(model, options, batch);
      if (first.empty()) first = got;
      CHECK(bit_equal(got, first));
    }
    least = std::min(least, relative_distance(first, expected, origin));
  }
  INFO(model.name() << " on " << replicas);
  CHECK(least <= 2e-6);
}

}  // namespace

TEST_CASE("mixed precision on CPUs: a step equals the reference in every reduction") {
  natively_and_emulated([] {
    for (const int replicas : {1, 2}) {
      check_step(small_convnet(), 9, replicas);
      check_step(residual_net(), 6, replicas);
      check_step(wide_net(), 4, replicas);
    }
  });
}

TEST_CASE("mixed precision on CPUs: with logical shards every number of replicas gives the same bits") {
  natively_and_emulated([] {
    for (const Model& model : {wide_net(), small_convnet(/*dropout=*/true)}) {
      DataParallelOptions options = low(on_cpus(1));
      options.logical_shards = 4;
      options.clip_grad_norm = 0.5;
      options.ema_decay = 0.9;
      const auto expected = three_steps(model, options);
      for (const int replicas : {2, 4}) {
        options.devices = cpus(replicas);
        INFO(model.name() << " on " << replicas);
        CHECK(bit_equal(three_steps(model, options), expected));
      }
    }
  });
}

TEST_CASE("mixed precision on CPUs: all schedules of a pipeline give the same bits") {
  natively_and_emulated([] {
    DataParallelOptions options = low(on_cpus(4));
    options.pipeline = {.stages = 2, .micro_batches = 3, .schedule = PipelineSchedule::gpipe};
    const auto expected = three_steps(wide_net(), options);
    for (const PipelineSchedule schedule : {PipelineSchedule::one_f_one_b, PipelineSchedule::zero_bubble}) {
      options.pipeline.schedule = schedule;
      CHECK(bit_equal(three_steps(wide_net(), options), expected));
    }
  });
}

TEST_CASE("mixed precision on CPUs: a run continues from its weights and state with the same bits") {
  natively_and_emulated([] {
    for (const Optimizer& optimizer : optimizers_with_state()) {
      const Model model = wide_net();
      DataParallelOptions options = low(on_cpus(2));
      options.grad_accum_steps = 2;
      DataParallel whole(model, options), resumed(model, options);
      for (std::uint64_t i = 0; i < 2; ++i) whole.train_step(random_batch(model, 8, i), optimizer);
      resumed.set_weights(whole.weights());
      resumed.set_optimizer_state(whole.optimizer_state());
      for (DataParallel* net : {&whole, &resumed})
        for (std::uint64_t i = 2; i < 4; ++i) net->train_step(random_batch(model, 8, i), optimizer);
      CHECK(bit_equal(resumed.weights(), whole.weights()));
      CHECK(bit_equal(resumed.optimizer_state().tensors, whole.optimizer_state().tensors));
    }
  });
}

TEST_CASE("mixed precision on CPUs: evaluation and predictions agree with float32 up to rounding") {
  natively_and_emulated([] {
    const Model model = wide_net();
    const Batch batch = random_batch(model, 13);
    DataParallel mixed(model, low(on_cpus(2))), full(model, on_cpus(2));
    const Tensor got = mixed.predict(batch.images), expected = full.predict(batch.images);
    double difference = 0, norm = 0;
    for (std::int64_t i = 0; i < expected.numel(); ++i) {
      difference += std::pow(value_at(got, i) - value_at(expected, i), 2);
      norm += std::pow(value_at(expected, i), 2);
    }
    CHECK(difference > 0);
    CHECK(std::sqrt(difference / norm) < 0.02);  // measured: 3e-3; seven layers of 8 bits
    mixed.evaluate(batch), full.evaluate(batch);
    CHECK(mixed.take_stats().loss() == Approx(full.take_stats().loss()).epsilon(0.01));
  });
}

TEST_CASE("mixed precision on CPUs: activations take half the memory, and the estimate is exact") {
  natively_and_emulated([] {
    const Model model = wide_net();
    const auto use = [&](const DataParallelOptions& options) {
      DataParallel net(model, options);
      net.prepare({64});
      const MemoryUse held = net.memory_use(0);
      CHECK(held.activations == estimate_memory(model, options, {64}, {}, kSgd).front().activations);
      CHECK(held.weights == estimate_memory(model, options, {64}, {}, kSgd).front().weights);
      return held;
    };
    CHECK(static_cast<double>(use(low(on_cpus(1))).activations) <=
          0.65 * static_cast<double>(use(on_cpus(1)).activations));
  });
}

TEST_CASE("mixed precision on CPUs: float16 is refused, and bfloat16 without instructions for it") {
  DataParallelOptions options = on_cpus(1);
  options.amp = Amp::float16;
  CHECK_THROWS_WITH(DataParallel(wide_net(), options), Catch::Contains("float16 requires GPUs"));
  if (!kernels::has_bfloat16())
    CHECK_THROWS_WITH(DataParallel(wide_net(), low(on_cpus(1))), Catch::Contains("DP_EMULATE_BF16=1"));
}
