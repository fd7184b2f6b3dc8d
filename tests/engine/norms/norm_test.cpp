// Batch normalisation: options from the model, num_batches_tracked, and refused batches.
#include "dp/error.h"
#include "support/norm_options.h"
#include "support/tested_kinds.h"

using namespace dp;
using namespace dp::test;

namespace {

std::int64_t tracked(const DataParallel& net) {
  for (const auto& [name, tensor] : net.weights())
    if (name == "bn1.num_batches_tracked") return *tensor.data<std::int64_t>();
  return -1;
}

Batch rows_of(const Batch& batch, std::int64_t begin, std::int64_t end) {
  return {batch.images.rows(begin, end), batch.labels.rows(begin, end), batch.samples.rows(begin, end)};
}

// The second normalisation has one value per channel and image.
Model narrowing_net() {
  ModelBuilder m("narrowing", Shape{2, 4, 4});
  auto x = m.batch_norm2d("wide", m.conv2d("conv", m.input(), {.out_channels = 4}));
  x = m.batch_norm2d("narrow", m.global_avg_pool2d(m.relu(x)));
  return m.build(m.linear("fc", m.flatten(x), {.out_features = 3}));
}

}  // namespace

TEST_CASE("batch normalisation: each layer has the eps and the momentum of its model") {
  for (const DeviceKind kind : tested_kinds()) {
    INFO(to_string(Device{kind, 0}));
    DataParallelOptions options = kind == DeviceKind::cuda ? on_gpus(1, 1) : on_cpus(1);
    options.devices = {Device{kind, 0}};
    check_norm_options(options);
  }
}

TEST_CASE("batch normalisation: each micro-batch updates the running statistics in turn and counts, as in PyTorch") {
  const Model model = residual_net();
  for (const std::int64_t rows : {10, 2}) {
    const Batch batch = random_batch(model, rows);
    DataParallelOptions options = on_cpus(1);
    DataParallel one_by_one(model, options);
    options.grad_accum_steps = 3;
    DataParallel together(model, options);
    together.train_step(batch, Sgd{.lr = 0});
    std::int64_t counted = 0;
    for (int micro = 0; micro < 3; ++micro) {
      const std::int64_t begin = std::min(rows, (micro * rows + 2) / 3),
                         end = std::min(rows, ((micro + 1) * rows + 2) / 3);
      if (begin < end) one_by_one.forward(rows_of(batch, begin, end).images), ++counted;
    }
    INFO(rows << " rows");
    CHECK(counted == std::min<std::int64_t>(3, rows));
    CHECK(tracked(together) == counted);
    CHECK(bit_equal(together.weights(), one_by_one.weights()));
    together.evaluate(batch);
    CHECK(tracked(together) == counted);
  }
}

TEST_CASE("batch normalisation: a single value per channel is rejected in training before any work, and nowhere else") {
  const Model model = narrowing_net();
  const auto refused = [&](DataParallelOptions options, std::int64_t rows, const char* way_out) {
    DataParallel net(model, options), other(model, options);
    const Batch batch = random_batch(model, rows);
    INFO(options.devices.size() << " replicas, " << rows << " rows, mode " << static_cast<int>(options.batch_norm));
    const auto check_refused = [&](const auto& call) {
      CHECK_THROWS_WITH(call(), Catch::Contains("'narrow'") && Catch::Contains("requires two values per channel") &&
                                    Catch::Contains(way_out));
    };
    check_refused([&] { net.train_step(batch, Sgd{.lr = 0.1f}); });
    check_refused([&] { net.prepare({rows}); });
    if (options.grad_accum_steps == 1 && options.logical_shards == 0)
      check_refused([&] { net.forward(batch.images); });
    else if (options.grad_accum_steps > 1)  // forward() does not split the batch
      CHECK_NOTHROW(DataParallel(model, options).forward(batch.images));
    // A refused batch has no effect.
    const Batch good = random_batch(model, 24);
    net.train_step(good, Sgd{.lr = 0.1f}), other.train_step(good, Sgd{.lr = 0.1f});
    CHECK(bit_equal(net.weights(), other.weights()));
    net.prepare({24}, {rows});
    net.evaluate(batch);
    CHECK(net.take_stats().samples == 24 + rows);
  };
  const auto trains = [&](DataParallelOptions options, std::int64_t rows) {
    DataParallel net(model, options);
    net.prepare({rows});
    net.train_step(random_batch(model, rows), Sgd{.lr = 0.1f});
    CHECK(net.take_stats().samples == rows);
  };
  const char* const per_shard = "--bn sync";
  for (const BatchNormMode mode : {BatchNormMode::master, BatchNormMode::pooled}) {
    DataParallelOptions options = on_cpus(3);
    options.batch_norm = mode;
    refused(options, 5, per_shard);  // shards of 2, 2, 1 rows
    refused(options, 2, per_shard);  // shards of 1, 1, 0 rows
    trains(options, 6);
    options.split = Split::chunk;
    refused(options, 7, per_shard);  // shards of 3, 3, 1 rows
    trains(options, 4);              // shards of 2, 2, 0 rows
    options = on_cpus(2);
    options.batch_norm = mode;
    options.logical_shards = 4;
    refused(options, 7, per_shard);  // logical shards of 2, 2, 2, 1 rows
    trains(options, 8);
    options = on_cpus(1);
    options.batch_norm = mode;
    options.grad_accum_steps = 3;
    refused(options, 5, "micro-batches");  // micro-batches of 2, 2, 1 rows
    trains(options, 6);
  }
  DataParallelOptions sync = on_cpus(3);
  sync.batch_norm = BatchNormMode::sync;
  trains(sync, 2);  // shards of 1, 1, 0 rows; sync uses the statistics of the whole batch
  refused(sync, 1, "--drop-last");
  sync.grad_accum_steps = 2;
  refused(sync, 3, "micro-batches");  // micro-batches of 2, 1 rows
  trains(sync, 4);
}
