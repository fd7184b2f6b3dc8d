#include "engine/base/split.h"

#include <numeric>

#include "dp/data_parallel.h"
#include "dp/error.h"
#include "engine/parallel/measure_split.h"
#include "support/catch.h"
#include "support/training.h"

using dp::Split;
using dp::split_batch;
using Sizes = std::vector<std::int64_t>;

TEST_CASE("chunk equals torch.chunk") {
  CHECK(split_batch(5, 4, Split::chunk) == Sizes{2, 2, 1});
  CHECK(split_batch(6, 4, Split::chunk) == Sizes{2, 2, 2});
  CHECK(split_batch(9, 4, Split::chunk) == Sizes{3, 3, 3});
  CHECK(split_batch(10, 4, Split::chunk) == Sizes{3, 3, 3, 1});
  CHECK(split_batch(9, 8, Split::chunk) == Sizes{2, 2, 2, 2, 1});
  CHECK(split_batch(17, 8, Split::chunk) == Sizes{3, 3, 3, 3, 3, 2});
  CHECK(split_batch(36, 7, Split::chunk).size() == 6);
}

TEST_CASE("balanced sizes differ by at most one") {
  CHECK(split_batch(10, 4, Split::balanced) == Sizes{3, 3, 2, 2});
  for (std::int64_t batch = 1; batch < 40; ++batch)
    for (int replicas = 1; replicas <= 9; ++replicas) {
      const Sizes sizes = split_batch(batch, replicas, Split::balanced);
      std::int64_t sum = 0;
      for (const std::int64_t size : sizes) {
        sum += size;
        CHECK(sizes.front() - size <= 1);
      }
      CHECK(sum == batch);
      CHECK(static_cast<std::int64_t>(sizes.size()) == std::min<std::int64_t>(batch, replicas));
    }
}

TEST_CASE("fewer rows than replicas leave the last replicas idle, and an empty batch is an error") {
  CHECK(split_batch(2, 4, Split::balanced) == Sizes{1, 1});
  CHECK_THROWS_AS(split_batch(0, 4, Split::balanced), dp::Error);
  CHECK_THROWS_AS(split_batch(4, 0, Split::balanced), dp::Error);
}

TEST_CASE("shards cover the batch in order") {
  for (const Split split : {Split::balanced, Split::chunk}) {
    std::int64_t end = 0;
    for (int rank = 0; rank < 5; ++rank) {
      const auto range = dp::engine::shard_of(13, rank, 5, split);
      CHECK(range.begin == end);
      end = range.end;
    }
    CHECK(end == 13);
  }
}

TEST_CASE("weighted shards are within one sample of their shares, and cover the batch in order") {
  CHECK(split_batch(128, {3, 1}) == Sizes{96, 32});
  CHECK(split_batch(10, {1, 3}) == Sizes{3, 7});
  CHECK(split_batch(1, {1, 1'000'000}) == Sizes{1, 0});
  CHECK(split_batch(5, {1, 1, 8}) == Sizes{1, 0, 4});
  for (const std::vector<int>& weights :
       {std::vector{7}, {3, 1}, {1, 3}, {1, 1, 8}, {5, 1, 2, 9}, {1'000'000, 1, 999'999}}) {
    const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
    for (std::int64_t batch = 1; batch < 70; ++batch) {
      const Sizes sizes = split_batch(batch, weights);
      CHECK(sizes.front() > 0);
      std::int64_t end = 0;
      for (std::size_t i = 0; i < weights.size(); ++i) {
        CHECK(std::abs(static_cast<double>(sizes[i]) - static_cast<double>(batch) * weights[i] / total) <= 1);
        const auto range = dp::engine::shard_of(batch, static_cast<int>(i), weights);
        CHECK(range.begin == end);
        CHECK(range.size() == sizes[i]);
        end = range.end;
      }
      CHECK(end == batch);
    }
  }
}

TEST_CASE("equal weights give the balanced shards") {
  for (const int replicas : {1, 2, 3, 4, 8})
    for (std::int64_t batch = 1; batch < 40; ++batch) {
      Sizes sizes = split_batch(batch, std::vector<int>(static_cast<std::size_t>(replicas), 5));
      while (sizes.back() == 0) sizes.pop_back();
      CHECK(sizes == split_batch(batch, replicas, Split::balanced));
    }
}

TEST_CASE("splits are read from their text, and anything else is rejected") {
  for (const char* text : {"balanced", "chunk", "3:1", "1:2:1000000", "7"}) {
    dp::DataParallelOptions options;
    dp::engine::read_split(text, options);
    CHECK(dp::engine::split_text(options) == text);
  }
  for (const char* text : {"", ":", "3:", ":1", "3:0", "3:-1", "3,1", "3:1.5", "1000001:1", "3:1 ", "0x3:1", "half"}) {
    dp::DataParallelOptions options;
    CHECK_THROWS_WITH(dp::engine::read_split(text, options), Catch::Contains("3:1"));
  }
  CHECK_THROWS_AS(split_batch(4, std::vector<int>{}), dp::Error);
  CHECK_THROWS_AS(split_batch(4, {1, 0}), dp::Error);
  CHECK_THROWS_AS(split_batch(0, {1, 1}), dp::Error);
}

TEST_CASE("weights that cannot be used are rejected") {
  const dp::Model model = dp::test::small_convnet();
  dp::DataParallelOptions options = dp::test::on_cpus(2);
  options.split_weights = {3, 1};
  CHECK_NOTHROW(dp::DataParallel(model, options));
  const auto refused = [&](auto change, const char* why) {
    dp::DataParallelOptions other = options;
    change(other);
    CHECK_THROWS_WITH(dp::DataParallel(model, other), Catch::Contains(why));
  };
  refused([](auto& o) { o.split_weights = {3, 1, 1}; }, "3 weights for 2 replicas");
  refused([](auto& o) { o.split_weights = {3, 0}; }, "from 1 to 1000000");
  refused([](auto& o) { o.split = Split::chunk; }, "Split::chunk");
  refused([](auto& o) { o.logical_shards = 2; }, "--logical-shards");
}

TEST_CASE("a step with weighted shards equals one replica's to 1e-5 of the distance moved") {
  const dp::Model model = dp::test::smooth_convnet();
  const dp::Sgd sgd{.lr = 0.1f, .momentum = 0.9f};
  const dp::Batch batch = dp::test::random_batch(model, 23), other = dp::test::random_batch(model, 11, 2);
  dp::DataParallel one(model, dp::test::on_cpus(1));
  const auto origin = one.weights();
  one.train_step(batch, sgd);
  one.take_stats();
  one.evaluate(other);
  const dp::Stats expected = one.take_stats();
  for (const dp::LossAt loss : {dp::LossAt::local, dp::LossAt::gathered})
    for (const dp::Reduce reduce : {dp::Reduce::master, dp::Reduce::all_reduce, dp::Reduce::sharded})
      for (const int micro_batches : {1, 3}) {
        dp::DataParallelOptions options = dp::test::on_cpus(3);
        options.split_weights = {1, 4, 2};
        options.loss = loss, options.reduce = reduce, options.grad_accum_steps = micro_batches;
        dp::DataParallel net(model, options);
        net.train_step(batch, sgd);
        CHECK(net.replicas_identical());
        const dp::test::Worst worst = dp::test::worst_error(net.weights(), one.weights(), &origin);
        INFO(worst.name << " " << worst.error << ", " << micro_batches << " micro-batches");
        CHECK(worst.error <= 1e-5);
        net.take_stats();
        net.evaluate(other);
        const dp::Stats stats = net.take_stats();
        CHECK(stats.samples == expected.samples);
        CHECK(stats.top1 == expected.top1);
        CHECK(stats.loss_sum == Approx(expected.loss_sum).epsilon(1e-5));
      }
}

TEST_CASE("synchronised batch normalisation is that of one replica, with an empty shard in the middle too") {
  const dp::Model model = dp::test::residual_net();
  const dp::Sgd sgd{.lr = 1};  // large, so that rounding of scales near 1 is negligible
  for (const std::int64_t rows : {5, 23}) {
    const dp::Batch batch = dp::test::random_batch(model, rows);
    const auto trained = [&](const dp::DataParallelOptions& options) {
      dp::DataParallel net(model, options);
      net.train_step(batch, sgd);
      CHECK(net.replicas_identical());
      return net.weights();
    };
    dp::DataParallelOptions options = dp::test::on_cpus(1);
    const auto origin = dp::DataParallel(model, options).weights();
    options.batch_norm = dp::BatchNormMode::sync;
    const auto expected = trained(options);
    options = dp::test::on_cpus(3);
    options.batch_norm = dp::BatchNormMode::sync;
    options.split_weights = {1, 1, 8};
    const dp::test::Worst worst = dp::test::worst_error(trained(options), expected, &origin);
    INFO(rows << " rows: " << worst.name << " " << worst.error);
    CHECK(worst.error <= 1e-5);
    options.batch_norm = dp::BatchNormMode::pooled;
    CHECK_NOTHROW(trained(options));
  }
}

TEST_CASE("measured weights are proportional to the speeds, and equal for speeds that timings cannot tell apart") {
  const auto weights = [](const std::vector<double>& seconds, std::int64_t rows) {
    std::vector<dp::PhaseTimes> times;
    for (const double each : seconds) times.push_back({.forward = each / 3, .backward = each * 2 / 3, .waiting = 9});
    return dp::engine::weights_of(times, rows);
  };
  CHECK(weights({1, 3}, 8) == std::vector{750, 250});
  CHECK(weights({1, 1.04}, 8) == std::vector{1, 1});
  CHECK(weights({1.06, 1}, 8) == std::vector{485, 515});
  CHECK(weights({2, 1}, 3) == std::vector{1, 1});  // shares of 2 and 1: equal speeds
  CHECK(weights({1e9, 1}, 2) == std::vector{1, 1000});
  CHECK(weights({1, 0}, 2) == std::vector{1, 1});
}

TEST_CASE("a split is measured on any devices but where results must not depend on timings") {
  const dp::Model model = dp::test::small_convnet();
  dp::DataParallelOptions options = dp::test::on_cpus(2);
  options.grad_accum_steps = 2, options.ema_decay = 0.9, options.clip_grad_norm = 1,
  options.loss = dp::LossAt::gathered;
  const std::vector<int> weights = dp::measure_split(model, options, 32);
  REQUIRE(weights.size() == 2);
  CHECK(weights[0] >= 1);
  CHECK(weights[1] >= 1);
  options.split_weights = weights;
  CHECK_NOTHROW(dp::DataParallel(model, options));
  CHECK(dp::measure_split(model, dp::test::on_cpus(1), 32) == std::vector{1});
  options = dp::test::on_cpus(2);
  options.deterministic = true;
  CHECK_THROWS_WITH(dp::measure_split(model, options, 16), Catch::Contains("--deterministic"));
}
