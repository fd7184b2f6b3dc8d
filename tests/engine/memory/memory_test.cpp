// The memory estimate against the memory that the replicas hold.
#include <limits>

#include "dp/error.h"
#include "engine/optimizer/optimizer.h"
#include "support/catch.h"
#include "support/training.h"

using namespace dp;
using namespace dp::test;

namespace {

void check_equal(const MemoryUse& estimated, const MemoryUse& held) {
  CHECK(estimated.weights == held.weights);
  CHECK(estimated.gradients == held.gradients);
  CHECK(estimated.optimizer == held.optimizer);
  CHECK(estimated.statistics == held.statistics);
  CHECK(estimated.average == held.average);
  CHECK(estimated.activations == held.activations);
  CHECK(estimated.workspace == held.workspace);
  CHECK(estimated.other == held.other);
  CHECK(estimated.total() == held.total());
}

}  // namespace

TEST_CASE("the memory estimate equals the memory held, kind by kind") {
  const Model model = residual_net();
  for (const int replicas : {1, 2, 3})
    for (const Reduce reduce : {Reduce::master, Reduce::all_reduce, Reduce::sharded})
      for (const LossAt loss : {LossAt::local, LossAt::gathered})
        for (const int shards : {0, 6}) {
          if (shards > 0 && loss == LossAt::gathered) continue;
          DataParallelOptions options = on_cpus(replicas);
          options.reduce = reduce;
          options.loss = loss;
          options.logical_shards = shards;
          options.batch_norm = shards > 0 ? BatchNormMode::sync : BatchNormMode::master;
          options.grad_accum_steps = 2;
          if (replicas == 2) options.ema_decay = 0.9;
          const auto estimated = estimate_memory(model, options, {14, 5}, {20});
          DataParallel net(model, options);
          net.prepare({14, 5}, {20});
          net.train_step(random_batch(model, 14), Sgd{.lr = 0.01f, .momentum = 0.9f});
          net.train_step(random_batch(model, 5), Sgd{.lr = 0.01f, .momentum = 0.9f});
          net.evaluate(random_batch(model, 20));
          INFO(replicas << " replicas, reduce " << static_cast<int>(reduce) << ", shards " << shards << ", gathered "
                        << (loss == LossAt::gathered));
          REQUIRE(estimated.size() == static_cast<std::size_t>(replicas));
          for (int replica = 0; replica < replicas; ++replica)
            check_equal(estimated[static_cast<std::size_t>(replica)], net.memory_use(replica));
        }
}

TEST_CASE("the memory estimate follows options that change the kernels, the state or the precision") {
  const Model model = residual_net();
  const auto check = [&](const char* what, const DataParallelOptions& options, const Optimizer& optimizer) {
    INFO(what);
    const auto estimated = estimate_memory(model, options, {14, 5}, {20}, optimizer);
    DataParallel net(model, options);
    net.prepare({14, 5}, {20}, {}, {}, optimizer);
    REQUIRE(estimated.size() == options.devices.size());
    for (std::size_t device = 0; device < estimated.size(); ++device)
      check_equal(estimated[device], net.memory_use(static_cast<int>(device)));
  };
  const Sgd momentum{.momentum = 0.9f};
  DataParallelOptions options = on_cpus(2);
  options.exact_convolutions = true;
  check("exact convolutions", options, momentum);
  options = on_cpus(2);
  options.deterministic = true;
  check("deterministic", options, momentum);
  options = on_cpus(2);
  options.threads_per_replica = 3;
  check("three threads", options, momentum);
  for (const Optimizer& optimizer : engine::every_optimizer())
    check(std::string(name_of(optimizer)).c_str(), on_cpus(2), optimizer);
  for (const Optimizer& optimizer : {Optimizer(Lamb{}), Optimizer(Muon{})}) {
    options = on_cpus(2);
    options.reduce = Reduce::master;
    options.bucket_bytes = 4000;
    check("directions of the master alone", options, optimizer);
    options = on_cpus(4);
    options.pipeline = {.stages = 2, .micro_batches = 3};
    check("directions of stages", options, optimizer);
  }
  check("three slots", on_cpus(2), RmsProp{.momentum = 0.9f, .centered = true});
  options = on_cpus(2);
  options.parameter_groups = {{.pattern = "a.*", .frozen = true}};
  options.clip_grad_norm = 1;
  options.ema_decay = 0.9;
  check("frozen parameters, clipping and an average", options, momentum);
  options = on_cpus(2);
  options.reduce_dtype = DType::bf16;
  options.bucket_bytes = 4000;
  check("a rounded reduction", options, momentum);
  options = on_cpus(3);
  options.split_weights = {1, 4, 2};
  options.batch_norm = BatchNormMode::pooled;
  check("a split by weight", options, momentum);
  options = on_reference();
  options.amp = Amp::float16;
  check("float16", options, momentum);
}

TEST_CASE("after growing with each batch, the memory equals the estimate for all batches") {
  const Model model = residual_net();
  DataParallelOptions gathered = on_cpus(2), pipeline = on_cpus(4);
  gathered.loss = LossAt::gathered;
  pipeline.pipeline = {.stages = 2, .micro_batches = 3};
  for (const DataParallelOptions& options : {on_cpus(1), gathered, pipeline}) {
    INFO(options.devices.size() << " devices");
    const auto estimated = estimate_memory(model, options, {6, 9, 24}, {12, 30});
    DataParallel net(model, options);
    for (const std::int64_t rows : {6, 9, 24}) {
      net.prepare({rows});
      net.train_step(random_batch(model, rows), Sgd{.lr = 0.01f, .momentum = 0.9f});
    }
    for (const std::int64_t rows : {12, 30}) {
      net.prepare({}, {rows});
      net.evaluate(random_batch(model, rows));
    }
    REQUIRE(estimated.size() == options.devices.size());
    for (std::size_t device = 0; device < estimated.size(); ++device)
      check_equal(estimated[device], net.memory_use(static_cast<int>(device)));
  }
}

TEST_CASE("the estimate for evaluations alone has no optimizer state, as the memory held") {
  const Model model = residual_net();
  DataParallel net(model, on_cpus(2));
  net.prepare({}, {20});
  net.evaluate(random_batch(model, 20));
  const auto estimated = estimate_memory(model, on_cpus(2), {}, {20}, AdamW{});
  for (int replica = 0; replica < 2; ++replica)
    check_equal(estimated[static_cast<std::size_t>(replica)], net.memory_use(replica));
}

TEST_CASE("the largest batch fits, and a slightly larger one does not") {
  const Model model = small_convnet();
  const DataParallelOptions options = on_cpus(2);
  const auto total = [&](std::int64_t batch) {
    std::size_t most = 0;
    for (const MemoryUse& use : estimate_memory(model, options, {batch}, {batch})) most = std::max(most, use.total());
    return most;
  };
  const std::size_t limit = total(100);
  const std::int64_t largest = largest_batch(model, options, limit);
  CHECK(largest >= 100);
  CHECK(total(largest) <= limit);
  CHECK(total(largest + 2) > limit);
  CHECK(largest_batch(model, options, 1000) == 0);
  CHECK(largest_batch(models::mlp(), on_reference(), std::numeric_limits<std::size_t>::max()) == 1 << 24);
}

TEST_CASE("the moving average follows the weights and is unchanged after a swap") {
  const Model model = residual_net();
  DataParallelOptions options = on_cpus(2);
  options.ema_decay = 0.75;
  DataParallel net(model, options);
  auto expected = net.weights();
  for (std::uint64_t step = 0; step < 3; ++step) {
    net.train_step(random_batch(model, 8, step), Sgd{.lr = 0.1f});
    const auto now = net.weights();
    const float share = 9 / (11 + static_cast<float>(step));  // of update step + 1, in the warm-up
    for (std::size_t t = 0; t < now.size(); ++t) {
      if (now[t].second.dtype() != DType::f32) continue;
      const auto from = now[t].second.span<float>();
      const auto to = expected[t].second.span<float>();
      for (std::size_t i = 0; i < from.size(); ++i) to[i] += share * (from[i] - to[i]);
    }
  }
  const auto weights = net.weights();
  auto average = net.average_weights();
  for (std::size_t t = 0; t < average.size(); ++t)
    if (average[t].second.dtype() == DType::f32) CHECK(relative_error(average[t].second, expected[t].second) <= 1e-6);
  CHECK(bit_equal(net.weights(), weights));
  net.swap_average();
  CHECK(net.replicas_identical());
  CHECK(worst_error(net.weights(), average).error == 0);
  net.swap_average();
  CHECK(bit_equal(net.weights(), weights));

  DataParallel other(model, options);
  other.set_weights(weights);
  other.set_average_weights(average);
  CHECK(bit_equal(other.average_weights(), average));
  CHECK(bit_equal(other.weights(), weights));
  CHECK_THROWS_AS(DataParallel(model, on_cpus(1)).swap_average(), Error);
}
