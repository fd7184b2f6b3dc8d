// L2 of the reproducibility ladder: bit-equal results for every number of replicas that divides the logical shards.
#include "dp/error.h"
#include "support/catch.h"
#include "support/training.h"

using namespace dp;
using namespace dp::test;

namespace {

// Every second batch has half as many rows. Stale data in shards that are now empty must not contribute.
std::vector<NamedTensor> train(const Model& model, const DataParallelOptions& options, std::int64_t rows) {
  DataParallel net(model, options);
  std::int64_t samples = 0;
  for (std::uint64_t step = 0; step < 4; ++step) {
    const std::int64_t now = step % 2 == 0 ? rows : (rows + 1) / 2;
    net.train_step(random_batch(model, now, step), Sgd{.lr = 0.05f, .momentum = 0.9f, .weight_decay = 1e-3f});
    samples += now;
  }
  CHECK(net.take_stats().samples == samples);
  CHECK(net.replicas_identical());
  auto state = net.weights();
  const auto momenta = net.optimizer_state().tensors;
  state.insert(state.end(), momenta.begin(), momenta.end());
  return state;
}

DataParallelOptions on_shards(int replicas, int shards) {
  DataParallelOptions options = on_cpus(replicas);
  options.logical_shards = shards;
  return options;
}

}  // namespace

TEST_CASE("L2: bits are equal at 1, 2, 4 and 8 replicas in every mode of batch normalisation") {
  const Model model = residual_net(/*relu=*/true, /*dropout=*/true);
  for (const BatchNormMode mode : {BatchNormMode::master, BatchNormMode::pooled, BatchNormMode::sync})
    for (const std::int64_t rows : {16, 13, 5}) {                 // shards of equal size, of two sizes, and empty ones
      if (rows == 16 && mode != BatchNormMode::master) continue;  // saves time
      DataParallelOptions one = on_shards(1, 8);
      one.batch_norm = mode;
      const auto expected = train(model, one, rows);
      for (const int replicas : {2, 4, 8}) {
        DataParallelOptions options = on_shards(replicas, 8);
        options.batch_norm = mode;
        INFO("mode " << static_cast<int>(mode) << ", rows " << rows << ", replicas " << replicas);
        CHECK(bit_equal(train(model, options, rows), expected));
      }
    }
}

TEST_CASE("L2: bits are equal for every reduction, clipping and micro-batches, also with six shards") {
  const Model model = small_convnet(/*dropout=*/true);
  for (const bool clip : {false, true})
    for (const int micros : {1, 2}) {
      const auto with = [&](int replicas, Reduce reduce) {
        DataParallelOptions options = on_shards(replicas, 6);
        options.reduce = reduce;
        options.grad_accum_steps = micros;
        options.bucket_bytes = 2000;
        if (clip) options.clip_grad_norm = 0.5;
        return train(model, options, 19);
      };
      const auto expected = with(1, Reduce::master);
      for (const int replicas : {1, 2, 3, 6})
        for (const Reduce reduce : {Reduce::master, Reduce::all_reduce, Reduce::sharded}) {
          INFO("replicas " << replicas << ", reduce " << static_cast<int>(reduce) << ", clip " << clip << ", micros "
                           << micros);
          CHECK(bit_equal(with(replicas, reduce), expected));
        }
    }
}

TEST_CASE("a shard without rows adds nothing, whatever it held in the step before") {
  const Model model = small_convnet();
  for (const int replicas : {1, 2, 3, 6}) {
    INFO(replicas << " replicas");
    DataParallelOptions options = on_shards(replicas, 6);
    DataParallel fresh(model, options), used(model, options);
    used.train_step(random_batch(model, 9), Sgd{.lr = 0});
    for (DataParallel* const net : {&fresh, &used}) net->train_step(random_batch(model, 4, 2), Sgd{.lr = 0.5f});
    CHECK(bit_equal(used.weights(), fresh.weights()));
    CHECK(bit_equal(used.gradients(), fresh.gradients()));
  }
}

TEST_CASE("logical shards equal the plain computation up to rounding") {
  const Model model = residual_net(/*relu=*/false);
  const Batch batch = random_batch(model, 12);
  const auto moved = [&](const DataParallelOptions& options) {
    DataParallel net(model, options);
    net.train_step(batch, Sgd{.lr = 1.0f});
    return net.weights();
  };
  DataParallelOptions sync = on_shards(2, 4);
  sync.batch_norm = BatchNormMode::sync;
  const auto origin = DataParallel(model, on_reference()).weights();
  const Worst worst = worst_error(moved(sync), moved(on_reference()), &origin);
  INFO(worst.name);
  CHECK(worst.error <= 2e-5);  // rounding of float32 weights, as for micro-batches
}

TEST_CASE("invalid logical shards are rejected with a remedy") {
  const Model model = small_convnet();
  CHECK_THROWS_WITH(DataParallel(model, on_shards(3, 8)), Catch::Contains("multiple of 3"));
  DataParallelOptions gathered = on_shards(2, 4);
  gathered.loss = LossAt::gathered;
  CHECK_THROWS_WITH(DataParallel(model, gathered), Catch::Contains("loss local"));
  DataParallel net(model, on_shards(2, 4));
  CHECK_THROWS_WITH(net.forward(random_batch(model, 4).images), Catch::Contains("train_step"));
}
