// Dropout masks depend on seed, layer, step and sample only.
#include <set>

#include "support/catch.h"
#include "support/tensor_errors.h"
#include "support/training.h"

using namespace dp;
using namespace dp::test;

namespace {

constexpr std::int64_t kRows = 4, kBlock = 8, kFeatures = kRows * kBlock;
constexpr float kP = 0.5f;
constexpr std::uint32_t kLayerA = 1, kLayerB = 3;  // indices into Model::layers()
using Mask = std::vector<bool>;

// Two dropouts that read the same input, each followed by its own linear layer.
Model two_dropouts() {
  ModelBuilder m("two_dropouts", Shape{kFeatures});
  const auto a = m.linear("a", m.dropout("drop_a", m.input(), kP), {.out_features = 3});
  const auto b = m.linear("b", m.dropout("drop_b", m.input(), kP), {.out_features = 3});
  return m.build(m.add(a, b));
}

// Row r is 1 in its block of features and 0 elsewhere. Each weight's gradient therefore depends on one row only.
Batch blocks(const std::vector<std::int64_t>& samples) {
  Batch batch{Tensor(Shape{kRows, kFeatures}), Tensor(Shape{kRows}, DType::i32), Tensor(Shape{kRows}, DType::i64)};
  for (std::int64_t i = 0; i < kFeatures; ++i) batch.images.data<float>()[i / kBlock * kFeatures + i] = 1;
  for (std::int64_t row = 0; row < kRows; ++row) {
    batch.labels.data<std::int32_t>()[row] = static_cast<std::int32_t>(row % 3);
    batch.samples.data<std::int64_t>()[row] = samples[static_cast<std::size_t>(row)];
  }
  return batch;
}

// The dropout mask before this layer in the last backward: a weight gradient is 0 where the element was dropped.
Mask kept(const DataParallel& net, const std::string& layer) {
  Mask mask;
  for (const auto& [name, gradient] : net.gradients())
    for (std::int64_t i = 0; name == layer + ".weight" && i < kFeatures; ++i)
      mask.push_back(gradient.data<float>()[i] != 0);
  return mask;
}

Mask expected(std::uint64_t seed, std::uint32_t layer, std::uint64_t step, const std::vector<std::int64_t>& samples) {
  Mask mask;
  for (std::uint32_t i = 0; i < kFeatures; ++i) {
    const auto sample = static_cast<std::uint64_t>(samples[i / kBlock]);
    mask.push_back(dropout_words(seed, layer, step, sample, i / 4)[i % 4] >= drop_threshold(kP));
  }
  return mask;
}

const std::vector<std::int64_t> kRowNumbers{0, 1, 2, 3};

// Checks both masks of the last backward. Row numbers serve as sample numbers.
void check_step(const DataParallel& net, std::uint64_t step) {
  INFO("step " << step);
  CHECK(kept(net, "a") == expected(net.options().seed, kLayerA, step, kRowNumbers));
  CHECK(kept(net, "b") == expected(net.options().seed, kLayerB, step, kRowNumbers));
}

Tensor any_gradient() {
  Tensor gradient(Shape{kRows, 3});
  for (float& x : gradient.span<float>()) x = 1;
  return gradient;
}

}  // namespace

TEST_CASE("a step's dropout depends on seed, layer, step and sample, not on replica and micro-batch") {
  const std::vector<std::int64_t> samples{5, (std::int64_t{1} << 33) + 9, 59999, 1000};
  const Batch batch = blocks(samples);
  for (const int replicas : {1, 2, 3})
    for (const int micro_batches : {1, 2, 3})
      for (const LossAt loss : {LossAt::local, LossAt::gathered}) {
        DataParallelOptions options = on_cpus(replicas);
        options.seed = 7;
        options.grad_accum_steps = micro_batches;
        options.loss = loss;
        DataParallel net(two_dropouts(), options);
        std::set<Mask> masks;
        for (std::uint64_t step = 0; step < 4; ++step) {
          INFO(replicas << " replicas, " << micro_batches << " micro-batches, step " << step);
          net.train_step(batch, Sgd{.lr = 0.01f});
          CHECK(kept(net, "a") == expected(7, kLayerA, step, samples));
          CHECK(kept(net, "b") == expected(7, kLayerB, step, samples));
          masks.insert({kept(net, "a"), kept(net, "b")});
        }
        CHECK(masks.size() == 8);
      }
}

TEST_CASE("each forward of the wrapper draws new masks") {
  const Batch batch = blocks(kRowNumbers);
  for (const int replicas : {1, 3}) {
    DataParallel net(two_dropouts(), on_cpus(replicas));
    const auto weights = net.weights();
    const auto forward_and_backward = [&] {
      net.forward(batch.images);
      net.backward(any_gradient());
    };
    for (std::uint64_t step = 0; step < 3; ++step) {  // the caller runs its own optimizer
      forward_and_backward();
      check_step(net, step);
      net.set_weights(weights);
      CHECK(net.step_count() == static_cast<std::int64_t>(step) + 1);
    }
    forward_and_backward();
    net.step(Sgd{.lr = 0});
    check_step(net, 3);
    CHECK(net.step_count() == 4);
    net.forward(batch.images);  // a forward without backward; it is step 4
    forward_and_backward();
    check_step(net, 5);
    CHECK(net.step_count() == 6);
    net.train_step(batch, Sgd{.lr = 0});
    check_step(net, 6);
    net.predict(batch.images);
    net.evaluate(batch);
    CHECK(net.step_count() == 7);
    forward_and_backward();
    check_step(net, 7);
    net.set_step_count(2);  // a resumed run repeats its masks
    CHECK(net.step_count() == 2);
    forward_and_backward();
    check_step(net, 2);
  }
}

// On images of one pixel the factors have the shape of the image, and must have its layout, which may be blocked.
TEST_CASE("whole channels and samples are dropped alike on every device, also from images of one pixel") {
  for (const std::int64_t channels : {1, 5, 13, 16})
    for (const int size : {3, 4}) {
      ModelBuilder m("dropped", Shape{2, 4, 4});
      auto x = m.relu(m.conv2d("conv", m.input(), {.out_channels = channels, .kernel = size}));
      if (size == 3) x = m.global_avg_pool2d(x);
      x = m.stochastic_depth("depth", m.dropout2d("channels", x, 0.4f), 0.3f);
      const Model model = m.build(m.linear("fc", m.flatten(x), {.out_features = 3}));
      DataParallel oracle(model, on_reference()), net(model, on_cpus(1));
      const Batch batch = random_batch(model, 9);
      for (DataParallel* const one : {&oracle, &net}) one->train_step(batch, Sgd{.lr = 0});
      INFO(channels << " channels, kernel " << size);
      const auto expected = oracle.gradients(), actual = net.gradients();
      for (std::size_t i = 0; i < expected.size(); ++i) {
        INFO(expected[i].first);
        CHECK(relative_error(actual[i].second, expected[i].second) <= 1e-5);
      }
    }
}

TEST_CASE("a user-written optimizer trains as the engine's, with dropout and a resumed run") {
  const Model model = small_convnet(/*dropout=*/true);
  const auto batch_of = [&](std::uint64_t step) {
    Batch batch = random_batch(model, 9, step);
    for (std::int64_t row = 0; row < 9; ++row) batch.samples.data<std::int64_t>()[row] = row;
    return batch;
  };
  const auto descend = [&](DataParallel& net, const Batch& batch) {
    net.backward(cross_entropy(net.forward(batch.images), batch.labels).grad);
    auto weights = net.weights();
    const auto gradients = net.gradients();
    for (std::size_t t = 0; t < weights.size(); ++t)
      for (std::int64_t i = 0; i < weights[t].second.numel(); ++i)
        weights[t].second.data<float>()[i] -= 0.1f * gradients[t].second.data<float>()[i];
    net.set_weights(weights);
  };
  const Sgd sgd{.lr = 0.1f};
  DataParallel fused(model, on_cpus(2)), wrapper(model, on_cpus(2)), own(model, on_cpus(2)), resumed(model, on_cpus(2));
  const auto origin = own.weights();
  for (std::uint64_t step = 0; step < 4; ++step) {
    const Batch batch = batch_of(step);
    fused.train_step(batch, sgd);
    wrapper.backward(cross_entropy(wrapper.forward(batch.images), batch.labels).grad);
    wrapper.step(sgd);
    if (step == 2) {
      resumed.set_weights(own.weights());
      resumed.set_step_count(own.step_count());
    }
    descend(own, batch);
    if (step >= 2) descend(resumed, batch);
  }
  CHECK(bit_equal(wrapper.weights(), fused.weights()));
  CHECK(bit_equal(resumed.weights(), own.weights()));
  CHECK(worst_error(own.weights(), fused.weights(), &origin).error <= 1e-5);  // a shifted mask gives 0.5
  for (const DataParallel* net : {&fused, &wrapper, &own, &resumed}) CHECK(net->step_count() == 4);
}
