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

}  // namespace

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
