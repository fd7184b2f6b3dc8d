// Evaluation with batch normalisations folded into convolutions: its results, and when the weights are folded again.
#include <cmath>
#include <string>

#include "dp/memory.h"
#include "support/catch.h"
#include "support/training.h"

using namespace dp;
using namespace dp::test;

namespace {

DataParallelOptions folding(DataParallelOptions options, FoldNorms fold) {
  options.fold_norms = fold;
  return options;
}

// What a new instance without folding predicts from the present weights of `net`.
Tensor unfolded(DataParallel& net, const Batch& batch) {
  DataParallelOptions options = folding(on_cpus(1), FoldNorms::never);
  if (net.weights().front().second.dtype() == DType::f64) options = folding(on_reference(), FoldNorms::never);
  DataParallel other(net.model(), options);
  other.set_weights(net.weights());
  return other.predict(batch.images).clone();
}

int folds_in(const std::string& plan) {
  int count = 0;
  for (std::size_t at = plan.find(" fold "); at != std::string::npos; at = plan.find(" fold ", at + 1)) ++count;
  return count;
}

std::string evaluation_plan(DataParallel& net, const Batch& batch) {
  net.evaluate(batch);
  const std::string plans = net.describe_plan(batch.size());
  return plans.substr(plans.find("evaluation"));
}

}  // namespace

TEST_CASE("folding: predictions equal those of separate normalisations") {
  const Model model = residual_net();
  const Batch batch = random_batch(model, 7);
  for (const int replicas : {1, 3}) {
    DataParallel net(model, folding(on_cpus(replicas), FoldNorms::always));
    for (std::uint64_t step = 0; step < 3; ++step) net.train_step(random_batch(model, 9, step), Sgd{.lr = 0.1f});
    CHECK(relative_error(net.predict(batch.images), unfolded(net, batch)) < 1e-6);
  }
  DataParallel exact(model, folding(on_reference(), FoldNorms::always));
  for (std::uint64_t step = 0; step < 3; ++step) exact.train_step(random_batch(model, 9, step), Sgd{.lr = 0.1f});
  CHECK(relative_error(exact.predict(batch.images), unfolded(exact, batch)) < 1e-14);
}

TEST_CASE("folding: evaluation follows every change of weights and running statistics") {
  const Model model = residual_net();
  const Batch batch = random_batch(model, 7);
  DataParallelOptions options = folding(on_cpus(2), FoldNorms::always);
  options.ema_decay = 0.5;
  DataParallel net(model, options);
  const auto check = [&](const char* after) {
    INFO("after " << after);
    CHECK(relative_error(net.predict(batch.images), unfolded(net, batch)) < 1e-6);
  };
  check("construction");
  net.train_step(batch, Sgd{.lr = 0.1f});
  check("train_step");
  net.train_step(batch, Sgd{.lr = 0.1f});
  check("a second train_step");
  net.forward(batch.images);  // moves the running statistics alone
  check("forward");
  const Tensor gradient = net.forward(batch.images).clone();
  net.backward(gradient);
  net.step(Sgd{.lr = 0.01f});
  check("step");
  net.swap_average();
  check("swap_average");
  net.swap_average();
  check("swapping back");
  auto weights = net.weights();
  for (auto& [name, tensor] : weights)
    if (name == "bn1.running_var")
      for (float& value : tensor.span<float>()) value *= 4;
  net.set_weights(weights);
  check("set_weights");
  net.set_average_weights(net.weights());
  check("set_average_weights");
}

TEST_CASE("folding: evaluate() and predict() agree, and an evaluation folds once") {
  const Model model = residual_net();
  DataParallel net(model, folding(on_cpus(1), FoldNorms::always));
  const Batch batch = random_batch(model, 7);
  CHECK(folds_in(evaluation_plan(net, batch)) == 6);  // the seventh normalisation, c.bn, follows no convolution
  net.take_stats();
  net.evaluate(batch);
  const double whole = net.take_stats().loss();
  const Tensor logits = net.predict(batch.images).clone();
  double loss = 0;
  for (std::int64_t row = 0; row < 7; ++row) {
    double sum = 0;
    for (std::int64_t i = 0; i < 6; ++i) sum += std::exp(value_at(logits, 6 * row + i));
    loss += (std::log(sum) - value_at(logits, 6 * row + batch.labels.data<std::int32_t>()[row])) / 7;
  }
  CHECK(whole == Approx(loss).epsilon(1e-6));
}

TEST_CASE("folding: it is off with deterministic runs unless it is asked for") {
  const Model model = residual_net();
  const Batch batch = random_batch(model, 4);
  const auto folds = [&](FoldNorms fold, bool deterministic, int logical_shards) {
    DataParallelOptions options = folding(on_cpus(1), fold);
    options.deterministic = deterministic;
    options.logical_shards = logical_shards;
    DataParallel net(model, options);
    return folds_in(evaluation_plan(net, batch));
  };
  CHECK(folds(FoldNorms::automatic, false, 0) == 6);
  CHECK(folds(FoldNorms::automatic, true, 0) == 0);
  CHECK(folds(FoldNorms::automatic, false, 2) == 0);
  CHECK(folds(FoldNorms::always, true, 0) == 6);
  CHECK(folds(FoldNorms::never, false, 0) == 0);
}

TEST_CASE("folding: training gives the same bits with folded evaluations between its steps") {
  const Model model = residual_net();
  const auto trained = [&](FoldNorms fold) {
    DataParallel net(model, folding(on_cpus(2), fold));
    for (std::uint64_t step = 0; step < 3; ++step) {
      net.train_step(random_batch(model, 9, step), Sgd{.lr = 0.1f, .momentum = 0.9f});
      net.evaluate(random_batch(model, 5, step));
    }
    return net.weights();
  };
  CHECK(worst_error(trained(FoldNorms::always), trained(FoldNorms::never)).error == 0);
}

TEST_CASE("folding: the memory estimate contains the folded weights") {
  const Model model = residual_net();
  for (const FoldNorms fold : {FoldNorms::always, FoldNorms::never}) {
    const DataParallelOptions options = folding(on_cpus(2), fold);
    DataParallel net(model, options);
    net.prepare({8}, {6});
    const auto estimated = estimate_memory(model, options, {8}, {6});
    for (int i = 0; i < 2; ++i) CHECK(estimated[static_cast<std::size_t>(i)].weights == net.memory_use(i).weights);
    const auto training = estimate_memory(model, options, {8}, {});
    CHECK((estimated[0].weights > training[0].weights) == (fold == FoldNorms::always));
  }
}
