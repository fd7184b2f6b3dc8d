// The moving average (EMA) of the weights on several replicas: its running statistics, and when it restarts.
#include "support/catch.h"
#include "support/training.h"

using namespace dp;
using namespace dp::test;

namespace {

DataParallelOptions averaging(int replicas) {
  DataParallelOptions options = on_cpus(replicas);
  options.ema_decay = 0.5;
  return options;
}

void train(DataParallel& net, std::uint64_t steps) {
  for (std::uint64_t step = 0; step < steps; ++step)
    net.train_step(random_batch(net.model(), 9, step), Sgd{.lr = 0.1f, .momentum = 0.9f});
}

// Predictions of one replica with the given weights and running statistics.
Tensor predicted(const Model& model, const std::vector<NamedTensor>& weights, const Batch& batch) {
  DataParallel one(model, on_cpus(1));
  one.set_weights(weights);
  return one.predict(batch.images).clone();
}

// Moves the float tensors of `average` towards `value` by `share`, in double.
void move_towards(std::vector<std::vector<double>>& average, const std::vector<NamedTensor>& value, double share) {
  for (std::size_t i = 0; i < value.size(); ++i) {
    if (value[i].second.dtype() != DType::f32) continue;
    const auto values = value[i].second.span<float>();
    average[i].resize(values.size());
    for (std::size_t k = 0; k < values.size(); ++k)
      average[i][k] += share * (static_cast<double>(values[k]) - average[i][k]);
  }
}

}  // namespace

TEST_CASE("update t of the average has the decay min(decay, (1 + t) / (10 + t))") {
  const Model model = residual_net();
  for (const int replicas : {1, 3}) {
    DataParallelOptions options = averaging(replicas);
    options.ema_decay = 0.4;  // (1 + t) / (10 + t) is lower up to t = 4, and equal at t = 5
    DataParallel net(model, options);
    std::vector<std::vector<double>> expected(net.weights().size());
    move_towards(expected, net.weights(), 1);
    for (int t = 1; t <= 9; ++t) {
      net.train_step(random_batch(model, 9, static_cast<std::uint64_t>(t)), Sgd{.lr = 0.1f, .momentum = 0.9f});
      move_towards(expected, net.weights(), t < 5 ? 1 - (1.0 + t) / (10.0 + t) : 0.6);
      CHECK(net.average_updates() == t);
      const auto average = net.average_weights();
      for (std::size_t i = 0; i < average.size(); ++i) {
        if (average[i].second.dtype() != DType::f32) continue;
        INFO(replicas << " replicas, update " << t << ", " << average[i].first);
        double error = 0, norm = 0;
        const auto actual = average[i].second.span<float>();
        for (std::size_t k = 0; k < actual.size(); ++k) {
          error += std::pow(static_cast<double>(actual[k]) - expected[i][k], 2);
          norm += expected[i][k] * expected[i][k];
        }
        CHECK(error <= 1e-12 * norm);
      }
    }
  }
}

TEST_CASE("forward, backward and step update the average as a training step does") {
  const Model model = smooth_convnet();
  DataParallel whole(model, averaging(2)), parts(model, averaging(2));
  for (std::uint64_t step = 0; step < 3; ++step) {
    const Batch batch = random_batch(model, 8, step);
    whole.train_step(batch, Sgd{.lr = 0.1f});
    const Loss loss = cross_entropy(parts.forward(batch.images), batch.labels);
    parts.backward(loss.grad);
    parts.step(Sgd{.lr = 0.1f});
  }
  CHECK(parts.average_updates() == 3);
  const auto expected = whole.average_weights(), actual = parts.average_weights();
  for (std::size_t i = 0; i < actual.size(); ++i) CHECK(relative_error(actual[i].second, expected[i].second) <= 1e-6);
}

TEST_CASE("a skipped step is an update of the average, and new weights begin at update 0") {
  const Model model = smooth_convnet();
  DataParallelOptions options = averaging(2);
  options.on_nonfinite = OnNonfinite::skip;
  DataParallel net(model, options), again(model, options);
  train(net, 2);
  const auto weights = net.weights(), average = net.average_weights();
  Batch bad = random_batch(model, 8, 5);
  bad.images.span<float>()[3] = NAN;
  net.train_step(bad, Sgd{.lr = 0.1f, .momentum = 0.9f});
  CHECK(bit_equal(net.weights(), weights));
  CHECK(net.average_updates() == 3);
  CHECK(!bit_equal(net.average_weights(), average));
  // The same update, made of the saved average.
  again.set_weights(weights);
  CHECK(again.average_updates() == 0);
  again.set_average_weights(average);
  again.set_average_updates(2);
  again.train_step(random_batch(model, 8, 5), Sgd{.lr = 0});
  CHECK(again.average_updates() == 3);
  CHECK(bit_equal(again.average_weights(), net.average_weights()));
  CHECK_THROWS_WITH(net.set_average_updates(-1), Catch::Contains("-1 updates"));
  net.set_weights(weights);
  CHECK(net.average_updates() == 0);
}

TEST_CASE("swapping the average in and out copies the matching running statistics to every replica") {
  const Model model = residual_net();
  const Batch batch = random_batch(model, 12, 77);
  for (const int replicas : {1, 2, 4}) {
    DataParallel net(model, averaging(replicas));
    train(net, 3);
    net.evaluate(batch);  // copies the current statistics to every replica
    net.take_stats();
    net.swap_average();
    const Tensor averaged = net.predict(batch.images).clone();
    net.swap_average();
    const Tensor trained = net.predict(batch.images).clone();
    const Tensor expected = predicted(model, net.average_weights(), batch);
    INFO(replicas << " replicas");
    CHECK(relative_error(averaged, expected) <= 1e-6);
    CHECK(relative_error(trained, predicted(model, net.weights(), batch)) <= 1e-6);
    CHECK(relative_error(trained, expected) > 0.01);
  }
}

TEST_CASE("new weights restart the average with their running statistics") {
  const Model model = residual_net();
  DataParallel net(model, averaging(2)), other(model, on_cpus(1));
  train(net, 3);
  train(other, 2);
  const auto given = other.weights();
  net.set_weights(given);
  CHECK(bit_equal(net.average_weights(), given));
  train(net, 1);
  CHECK(!bit_equal(net.average_weights(), net.weights()));
  net.set_weights({given.front()});  // setting one tensor restarts the average
  CHECK(bit_equal(net.average_weights(), net.weights()));
}

TEST_CASE("an average that does not fit the model is rejected and changes nothing") {
  const Model model = residual_net();
  DataParallel net(model, averaging(2));
  train(net, 3);
  const auto weights = net.weights(), average = net.average_weights();
  CHECK_THROWS_WITH(net.set_average_weights({{"conv9.weight", Tensor(Shape{1})}}), Catch::Contains("conv9.weight"));
  CHECK(bit_equal(net.weights(), weights));
  CHECK(bit_equal(net.average_weights(), average));
}

TEST_CASE("setting the average leaves the current weights and their counters unchanged") {
  const Model model = residual_net();
  DataParallel net(model, averaging(2)), other(model, averaging(3));
  train(net, 3);
  train(other, 5);
  const auto weights = net.weights(), average = other.average_weights();
  net.set_average_weights(average);
  CHECK(bit_equal(net.weights(), weights));
  const auto got = net.average_weights();
  for (std::size_t i = 0; i < got.size(); ++i)
    if (got[i].second.dtype() == DType::f32) CHECK(bit_equal({got[i]}, {average[i]}));
  CHECK(net.replicas_identical());
}

TEST_CASE("without ema_decay every call that needs the average is refused with this reason") {
  DataParallel net(smooth_convnet(), on_cpus(2));
  train(net, 1);
  const std::string text = "there is no moving average of the weights; set ema_decay";
  CHECK(net.average_updates() == 0);
  CHECK_THROWS_WITH(net.swap_average(), text);
  CHECK_THROWS_WITH(net.average_weights(), text);
  CHECK_THROWS_WITH(net.set_average_weights({}), text);
  DataParallel averaged(smooth_convnet(), averaging(2));
  train(averaged, 1);
  CHECK_THROWS_WITH(averaged.set_average_updates(-1), "a moving average cannot have made -1 updates");
  CHECK(averaged.average_updates() == 1);
  averaged.set_average_updates(0);
  CHECK(averaged.average_updates() == 0);
}
