// Training under the race detector of the simulation: within kernels, and between what streams of all devices do.
#include "cuda/narrow_nets.h"
#include "cuda/simulated_gpus.h"

using namespace dp;
using namespace dp::test;

TEST_CASE("race detector: steps of mnist_convnet, every reduction") {
  const Model model = models::mnist_convnet({.classes = 10, .width = 2, .input = {1, 10, 10}});
  for (const int gpus : {1, 3})
    for (const Reduce reduce : kReductions) {
      SimulatedGpus machine(gpus);
      DataParallelOptions options = on_gpus(gpus, gpus);
      options.reduce = reduce;
      options.bucket_bytes = 4000;
      options.clip_grad_norm = reduce == Reduce::sharded ? std::optional(1.0) : std::nullopt;
      five_steps(model, options, 5);
    }
}

TEST_CASE("race detector: steps of a residual network, statistics synchronised, GPUs that do not see each other") {
  const Model model = residual_net(/*relu=*/true, /*dropout=*/true);
  for (const simt::Peer peers : {simt::Peer::works, simt::Peer::none}) {
    SimulatedGpus machine(2, peers);
    DataParallelOptions options = on_gpus(2, 2);
    options.batch_norm = BatchNormMode::sync;
    five_steps(model, options, 5);
    options.logical_shards = 4;
    options.ema_decay = 0.9;
    five_steps(model, options, 5);
  }
}

TEST_CASE("race detector: the seven steps one by one, gathered loss, evaluation, accumulation") {
  const Model model = small_convnet(/*dropout=*/true);
  SimulatedGpus machine(2);
  DataParallelOptions options = on_gpus(2, 2);
  options.loss = LossAt::gathered;
  options.grad_accum_steps = 2;
  five_steps(model, options, 7);
  DataParallel net(model, on_gpus(2, 2));
  for (std::uint64_t i = 0; i < 2; ++i) {
    const Batch batch = random_batch(model, 6, i);
    net.backward(cross_entropy(net.forward(batch.images), batch.labels).grad);
    net.step({.lr = 0.1f, .momentum = 0.9f});
    net.evaluate(batch);
  }
  CHECK(net.take_stats().samples == 12);
}
