// The engine over streams with their own threads, random delays and copied inputs, as under CUDA. A missing wait
// between streams changes the result or makes the thread sanitizer report a race.
#include "engine/base/test_modes.h"
#include "support/catch.h"
#include "support/training.h"

using namespace dp;
using namespace dp::test;

namespace {

class ThreadedStreams {
 public:
  ThreadedStreams(std::uint64_t seed, bool discrete) { engine::test_modes() = {true, seed, discrete}; }
  ~ThreadedStreams() { engine::test_modes() = {}; }
};

std::vector<NamedTensor> train(const Model& model, const DataParallelOptions& options) {
  DataParallel net(model, options);
  std::vector<Batch> batches;
  for (std::uint64_t i = 0; i < 4; ++i) batches.push_back(random_batch(model, 7, i));
  for (int step = 0; step < 4; ++step) {
    net.train_step(batches[static_cast<std::size_t>(step)], Sgd{.lr = 0.1f, .momentum = 0.9f});
    if (step == 1) net.evaluate(batches[0]);
  }
  CHECK(net.take_stats().samples == 5 * 7);
  CHECK(net.replicas_identical());
  return net.weights();
}

}  // namespace

TEST_CASE("asynchronous streams give the same bits as inline streams") {
  const Model model = small_convnet(/*dropout=*/true);
  for (const int replicas : {1, 2, 4})
    for (const Reduce reduce : {Reduce::master, Reduce::all_reduce, Reduce::sharded})
      for (const LossAt loss : {LossAt::local, LossAt::gathered})
        for (const bool clip : {false, true}) {
          // Covers each loss with and without clipping, and each reduction mode.
          if (((loss == LossAt::gathered) == clip) == (reduce == Reduce::all_reduce)) continue;  // saves time
          DataParallelOptions options = on_cpus(replicas);
          options.reduce = reduce;
          options.loss = loss;
          options.bucket_bytes = 1500;
          if (clip) options.clip_grad_norm = 0.3;
          const auto expected = train(model, options);
          for (const bool discrete : {false, true}) {
            ThreadedStreams mode(static_cast<std::uint64_t>(replicas) * 10, discrete);
            INFO(replicas << " replicas, reduce " << static_cast<int>(reduce) << ", gathered "
                          << (loss == LossAt::gathered) << ", clip " << clip << ", discrete " << discrete);
            CHECK(bit_equal(train(model, options), expected));
          }
        }
}

TEST_CASE("a pipeline on asynchronous streams gives the same bits") {
  const Model model = residual_net(/*relu=*/true, /*dropout=*/true);
  DataParallelOptions options = on_cpus(2);
  options.grad_accum_steps = 3;
  options.clip_grad_norm = 0.3;
  options.bucket_bytes = 1500;
  const auto expected = train(model, options);
  options.devices = cpus(4);
  options.grad_accum_steps = 1;
  for (const PipelineSchedule schedule : {PipelineSchedule::one_f_one_b, PipelineSchedule::zero_bubble})
    for (const bool discrete : {false, true}) {
      options.pipeline = {.stages = 2, .micro_batches = 3, .schedule = schedule};
      ThreadedStreams mode(17 + static_cast<std::uint64_t>(schedule), discrete);
      INFO("schedule " << static_cast<int>(schedule) << ", discrete " << discrete);
      CHECK(bit_equal(train(model, options), expected));
    }
}

TEST_CASE(
    "a pipeline on asynchronous streams may be destroyed within a step, and evaluates larger batches at any time") {
  const Model model = residual_net();
  DataParallelOptions options = on_cpus(2);
  options.pipeline = {.stages = 2, .micro_batches = 3};
  DataParallel expected(model, options);
  const Batch small = random_batch(model, 6), large = random_batch(model, 24);
  const Sgd sgd{.lr = 0.1f, .momentum = 0.9f};
  const auto train = [&](DataParallel& net) {
    net.train_step(small, sgd);
    net.evaluate(large);
    net.train_step(small, sgd);
    return net.take_stats().loss_sum;
  };
  const double loss = train(expected);
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    const ThreadedStreams mode(seed, true);
    DataParallel net(model, options);
    CHECK(train(net) == loss);
    net.train_step(small, sgd);  // its last transfers may run when `net` is destroyed
  }
}

TEST_CASE("batch normalisation and logical shards on asynchronous streams give the same bits") {
  const Model model = residual_net(/*relu=*/true, /*dropout=*/true);
  for (const int replicas : {2, 3})
    for (const BatchNormMode mode : {BatchNormMode::pooled, BatchNormMode::sync})
      for (const int shards : {0, 6}) {
        DataParallelOptions options = on_cpus(replicas);
        options.batch_norm = mode;
        options.logical_shards = shards;
        options.bucket_bytes = 1500;
        options.ema_decay = 0.9;
        const auto expected = train(model, options);
        ThreadedStreams threaded(static_cast<std::uint64_t>(replicas) * 7, true);
        INFO(replicas << " replicas, mode " << static_cast<int>(mode) << ", shards " << shards);
        CHECK(bit_equal(train(model, options), expected));
      }
}

TEST_CASE("a bfloat16 reduction on asynchronous streams gives the same bits") {
  const Model model = residual_net();
  for (const Reduce reduce : {Reduce::master, Reduce::all_reduce, Reduce::sharded})
    for (const int shards : {0, 6}) {
      DataParallelOptions options = on_cpus(3);
      options.reduce = reduce;
      options.reduce_dtype = DType::bf16;
      options.logical_shards = shards;
      options.bucket_bytes = 1500;
      const auto expected = train(model, options);
      ThreadedStreams threaded(21, true);
      INFO("reduce " << static_cast<int>(reduce) << ", shards " << shards);
      CHECK(bit_equal(train(model, options), expected));
    }
}

TEST_CASE("the wrapper on asynchronous streams gives the same bits") {
  const Model model = small_convnet();
  const Batch batch = random_batch(model, 10);
  const auto run = [&](int replicas) {
    DataParallel net(model, on_cpus(replicas));
    for (int step = 0; step < 3; ++step) {
      net.backward(cross_entropy(net.forward(batch.images), batch.labels).grad);
      net.step(Sgd{.lr = 0.1f, .momentum = 0.9f});
    }
    return net.weights();
  };
  for (const int replicas : {1, 3}) {
    const auto expected = run(replicas);
    ThreadedStreams mode(5, false);
    CHECK(bit_equal(run(replicas), expected));
  }
}
