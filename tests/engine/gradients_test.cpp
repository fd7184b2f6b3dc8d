// Promises of docs/reference/semantics.md about gradients and steps: CPU replicas against one float64 reference device.
#include "dp/error.h"
#include "engine/base/split.h"
#include "support/catch.h"
#include "support/training.h"

using namespace dp;
using namespace dp::test;

namespace {

std::vector<NamedTensor> gradients_of(const Model& model, const DataParallelOptions& options, const Batch& batch) {
  DataParallel net(model, options);
  const Loss loss = cross_entropy(net.forward(batch.images), batch.labels, options.label_smoothing);
  net.backward(loss.grad);
  return net.gradients();
}

const std::vector<Reduce> kReduces{Reduce::master, Reduce::all_reduce, Reduce::sharded};

}  // namespace

TEST_CASE("gradients of the wrapper equal the float64 reference for every remainder of B by N") {
  const Model model = smooth_convnet();
  for (const std::int64_t rows : {1, 2, 3, 4, 5, 7, 9, 16, 33}) {
    const Batch batch = random_batch(model, rows, static_cast<std::uint64_t>(rows));
    const auto expected = gradients_of(model, on_reference(), batch);
    for (const int replicas : {1, 2, 3, 4, 8})
      for (const Split split : {Split::balanced, Split::chunk}) {
        DataParallelOptions options = on_cpus(replicas);
        options.split = split;
        const Worst worst = worst_error(gradients_of(model, options, batch), expected);
        INFO("rows " << rows << ", replicas " << replicas << ", tensor " << worst.name);
        CHECK(worst.error <= 1e-5);
      }
    for (const std::vector<int>& weights : {std::vector{3, 1}, {1, 3}, {1, 1, 8}, {5, 1, 2, 9}}) {
      DataParallelOptions options = on_cpus(static_cast<int>(weights.size()));
      options.split_weights = weights;
      const Worst worst = worst_error(gradients_of(model, options, batch), expected);
      INFO("rows " << rows << ", split " << engine::split_text(options) << ", tensor " << worst.name);
      CHECK(worst.error <= 1e-5);
    }
  }
}

TEST_CASE("gradients of a network with ReLU and pooling equal the reference") {
  const Model model = small_convnet();
  const Batch batch = random_batch(model, 13);
  const auto expected = gradients_of(model, on_reference(), batch);
  for (const int replicas : {1, 2, 3, 4}) {
    const Worst worst = worst_error(gradients_of(model, on_cpus(replicas), batch), expected);
    INFO("replicas " << replicas << ", tensor " << worst.name);
    CHECK(worst.error <= 1e-5);
  }
}

TEST_CASE("the engine's float64 gradients equal central differences of its loss") {
  const Model model = smooth_convnet();
  const Batch batch = random_batch(model, 5);
  DataParallel net(model, on_reference());
  const auto loss_at = [&] { return cross_entropy(net.forward(batch.images), batch.labels, 0.1f); };
  net.backward(loss_at().grad);
  const auto gradients = net.gradients();
  const auto weights = net.weights();
  const double h = 1e-5;
  Random random(9, RandomUse::synthetic);
  for (std::size_t t = 0; t < weights.size(); ++t)
    for (int trial = 0; trial < 4; ++trial) {
      const auto i = static_cast<std::int64_t>(random.below(static_cast<std::uint32_t>(weights[t].second.numel())));
      const auto shifted = [&](double by) {
        Tensor copy = weights[t].second.clone();
        copy.data<double>()[i] += by;
        net.set_weights({{weights[t].first, copy}});
        return loss_at().value;
      };
      const double difference = (shifted(h) - shifted(-h)) / (2 * h);
      net.set_weights({weights[t]});
      INFO(weights[t].first << " element " << i);
      CHECK(value_at(gradients[t].second, i) == Approx(difference).margin(1e-9).epsilon(1e-6));
    }
}

TEST_CASE("the loss on the replicas and the loss gathered on the master reach the same weights") {
  const Model model = small_convnet();
  const Batch batch = random_batch(model, 11);
  const auto after_step = [&](LossAt loss, int replicas) {
    DataParallelOptions options = on_cpus(replicas);
    options.loss = loss;
    options.label_smoothing = 0.1f;
    DataParallel net(model, options);
    net.train_step(batch, Sgd{.lr = 0.1f});
    const Stats stats = net.take_stats();
    CHECK(stats.samples == 11);
    return std::pair(net.weights(), stats);
  };
  for (const int replicas : {1, 2, 3, 4}) {
    const auto [local, local_stats] = after_step(LossAt::local, replicas);
    const auto [gathered, gathered_stats] = after_step(LossAt::gathered, replicas);
    CHECK(bit_equal(local, gathered));
    CHECK(local_stats.loss_sum == Approx(gathered_stats.loss_sum));
    CHECK(local_stats.top1 == gathered_stats.top1);
    CHECK(local_stats.top5 == gathered_stats.top5);
  }
}

TEST_CASE("a batch with fewer rows than micro-batches trains alike with local and gathered loss") {
  const Model model = small_convnet();
  const Batch batch = random_batch(model, 3);
  for (const int replicas : {1, 2}) {
    const auto after_step = [&](LossAt loss) {
      DataParallelOptions options = on_cpus(replicas);
      options.loss = loss;
      options.grad_accum_steps = 4;
      DataParallel net(model, options);
      net.train_step(batch, Sgd{.lr = 0.1f});
      CHECK(net.take_stats().samples == 3);
      return net.weights();
    };
    CHECK(bit_equal(after_step(LossAt::local), after_step(LossAt::gathered)));
  }
}

TEST_CASE("every reduce reaches the same weights bit for bit, with buckets of any size") {
  const Model model = small_convnet(/*dropout=*/true);
  const auto run = [&](Reduce reduce, int replicas, std::size_t bucket_bytes, bool clip) {
    DataParallelOptions options = on_cpus(replicas);
    options.reduce = reduce;
    options.bucket_bytes = bucket_bytes;
    options.check_replicas = true;
    if (clip) options.clip_grad_norm = 0.5;
    DataParallel net(model, options);
    for (std::uint64_t step = 0; step < 4; ++step)
      net.train_step(random_batch(model, 9, step),
                     Sgd{.lr = 0.05f, .momentum = 0.9f, .nesterov = true, .weight_decay = 1e-3f});
    const auto momenta = net.optimizer_state().tensors;
    auto state = net.weights();
    state.insert(state.end(), momenta.begin(), momenta.end());
    return state;
  };
  for (const int replicas : {2, 3, 4})
    for (const bool clip : {false, true}) {
      const auto expected = run(Reduce::master, replicas, 0, clip);
      for (const Reduce reduce : kReduces)
        for (const std::size_t bucket : {std::size_t{1}, std::size_t{2000}, std::size_t{1} << 30}) {
          INFO("replicas " << replicas << ", reduce " << static_cast<int>(reduce) << ", bucket " << bucket << ", clip "
                           << clip);
          CHECK(bit_equal(run(reduce, replicas, bucket, clip), expected));
        }
    }
}

TEST_CASE("the micro-batches of one step equal the whole batch") {
  const Model model = smooth_convnet();
  for (const std::int64_t rows : {1, 5, 12}) {
    const Batch batch = random_batch(model, rows);
    const auto moved = [&](const DataParallelOptions& options) {
      DataParallel net(model, options);
      net.train_step(batch, Sgd{.lr = 1.0f});
      CHECK(net.take_stats().samples == rows);
      return net.weights();
    };
    const auto origin = DataParallel(model, on_reference()).weights();
    const auto expected = moved(on_reference());
    for (const int replicas : {1, 2, 3})
      for (const int micros : {1, 2, 3, 5}) {
        DataParallelOptions options = on_cpus(replicas);
        options.grad_accum_steps = micros;
        const Worst worst = worst_error(moved(options), expected, &origin);
        INFO("rows " << rows << ", replicas " << replicas << ", micro-batches " << micros << ", tensor " << worst.name);
        // Rounding of the float32 weights dominates: half an ulp of a weight of 0.3 is 1.5e-8; the step is about 1e-2.
        CHECK(worst.error <= 2e-5);
      }
  }
}

TEST_CASE("dropout does not depend on the number of replicas or micro-batches") {
  const Model model = small_convnet(/*dropout=*/true);
  const Batch batch = random_batch(model, 12);
  const auto moved = [&](int replicas, int micros) {
    DataParallelOptions options = on_cpus(replicas);
    options.grad_accum_steps = micros;
    DataParallel net(model, options);
    net.train_step(batch, Sgd{.lr = 0.5f});
    return net.weights();
  };
  const auto origin = DataParallel(model, on_cpus(1)).weights();
  const auto expected = moved(1, 1);
  for (const auto& [replicas, micros] : std::vector<std::pair<int, int>>{{2, 1}, {3, 1}, {4, 2}, {1, 3}}) {
    const Worst worst = worst_error(moved(replicas, micros), expected, &origin);
    INFO("replicas " << replicas << ", micro-batches " << micros << ", tensor " << worst.name);
    CHECK(worst.error <= 2e-5);  // rounding of float32 weights, as above
  }
}
