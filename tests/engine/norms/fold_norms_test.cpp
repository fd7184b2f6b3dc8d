// Tests that evaluations with folded batch normalisations give the results of unfolded ones, and that the weights are
// folded again after every change.
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "dp/memory.h"
#include "engine/step/replica.h"
#include "kernels/device/host/host_context.h"
#include "kernels/device/reference/reference_op.h"
#include "support/catch.h"
#include "support/emulated_bfloat16.h"
#include "support/fusing.h"
#include "support/training.h"

using namespace dp;
using namespace dp::test;

namespace {

// Bounds of |difference| / |logits| for the rounding errors of a few layers, in float32 and in float64.
constexpr double kSingle = 1e-6, kExact = 1e-14;

DataParallelOptions folding(DataParallelOptions options, FoldNorms fold) {
  options.fold_norms = fold;
  return options;
}

// A network with the difficult cases of folding. conv0 has a bias, and the model's input is added to its normalised
// result. Two layers read conv1, so a.bn1 is not folded. a.conv1 and b.conv1 could normalise their own inputs
// (NormConv2dForward), but bn2 is folded into each of them.
Model many_norms() {
  ModelBuilder m("many_norms", Shape{4, 9, 9});
  const auto conv = [&](const std::string& name, ModelBuilder::Node x, std::int64_t channels, bool bias = false) {
    return m.conv2d(name, x, {.out_channels = channels, .kernel = 3, .padding = 1, .bias = bias});
  };
  auto x = m.relu(m.add(m.batch_norm2d("bn0", conv("conv0", m.input(), 4, true)), m.input()));
  x = conv("conv1", x, 17);
  auto y = conv("a.conv1", m.relu(m.batch_norm2d("a.bn1", x)), 20);
  y = conv("a.conv2", m.relu(m.batch_norm2d("a.bn2", y)), 17);
  x = m.add(y, x);
  y = conv("b.conv1", m.relu(m.batch_norm2d("b.bn1", x)), 33);
  x = m.relu(m.batch_norm2d("b.bn2", y));
  return m.build(m.linear("fc", m.flatten(m.global_avg_pool2d(x)), {.out_features = 6}));
}

// Returns the predictions of a new instance that has the weights of `net` and folds nothing.
Tensor unfolded(DataParallel& net, const Batch& batch) {
  DataParallelOptions options = folding(on_cpus(1), FoldNorms::never);
  if (net.weights().front().second.dtype() == DType::f64) options = folding(on_reference(), FoldNorms::never);
  DataParallel other(net.model(), options);
  other.set_weights(net.weights());
  return other.predict(batch.images).clone();
}

int folds_in(const std::string& plan) {  // without the reorders after some of them
  int count = 0;
  for (std::size_t at = plan.find(" fold "); at != std::string::npos; at = plan.find(" fold ", at + 1))
    if (plan.compare(at, 14, " fold reorder ") != 0) ++count;
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
    CHECK(relative_error(net.predict(batch.images), unfolded(net, batch)) < kSingle);
  }
  DataParallel exact(model, folding(on_reference(), FoldNorms::always));
  for (std::uint64_t step = 0; step < 3; ++step) exact.train_step(random_batch(model, 9, step), Sgd{.lr = 0.1f});
  CHECK(relative_error(exact.predict(batch.images), unfolded(exact, batch)) < kExact);
}

TEST_CASE("folding: it fits every neighbourhood of a normalisation, whatever convolutions normalise themselves") {
  const Model model = many_norms();
  const Batch batch = random_batch(model, 5);
  for (const kernels::NormFusion fusion : {kernels::NormFusion::always, kernels::NormFusion::never})
    for (const bool reference : {true, false}) {
      INFO((reference ? "reference" : "CPU") << (fusion == kernels::NormFusion::always ? ", fused" : ""));
      const Fusing fusing(fusion);
      DataParallel net(model, folding(reference ? on_reference() : on_cpus(3), FoldNorms::always));
      for (std::uint64_t step = 0; step < 2; ++step) net.train_step(random_batch(model, 9, step), Sgd{.lr = 0.1f});
      for (const std::int64_t rows : {5, 2}) {  // with two rows a replica has none
        const Batch some = random_batch(model, rows);
        CHECK(relative_error(net.predict(some.images), unfolded(net, some)) < (reference ? kExact : kSingle));
      }
      CHECK(folds_in(evaluation_plan(net, batch)) == 3);  // conv0, a.conv1, b.conv1
    }
}

TEST_CASE("folding: with mixed precision predictions differ by the rounding of weights and activations") {
  std::optional<EmulatedBfloat16> emulated;
  if (!kernels::has_bfloat16()) emulated.emplace();
  for (const Model& model : {residual_net(), many_norms()}) {
    const Batch batch = random_batch(model, 7);
    DataParallelOptions options = on_cpus(2);
    options.amp = Amp::bfloat16;
    DataParallel folded(model, folding(options, FoldNorms::always)), apart(model, folding(options, FoldNorms::never));
    for (std::uint64_t step = 0; step < 2; ++step) folded.train_step(random_batch(model, 9, step), Sgd{.lr = 0.1f});
    // weights() gathers the weights in full precision. Until then each replica has only its own part of them.
    const Tensor predicted = folded.predict(batch.images).clone();
    apart.set_weights(folded.weights());
    const double error = relative_error(predicted, apart.predict(batch.images));
    INFO(model.name() << ": " << error);
    CHECK(error > 0);
    CHECK(error < 0.02);  // a few roundings of 2^-9 per layer
  }
}

TEST_CASE("folding: an evaluation with several shards per replica gives the loss of separate normalisations") {
  const Model model = residual_net();
  const Batch batch = random_batch(model, 7);
  const auto loss = [&](FoldNorms fold) {
    DataParallelOptions options = folding(on_cpus(2), fold);
    options.logical_shards = 4;
    DataParallel net(model, options);
    net.train_step(random_batch(model, 9), Sgd{.lr = 0.1f});
    net.take_stats();
    net.evaluate(batch);
    net.evaluate(random_batch(model, 3));  // one shard has no row
    return net.take_stats().loss();
  };
  CHECK(loss(FoldNorms::always) == Approx(loss(FoldNorms::never)).epsilon(kSingle));
}

namespace {

// A reference device that counts how often weights are folded.
class CountingContext final : public kernels::HostContext {
 public:
  explicit CountingContext(int& folded) : HostContext({DeviceKind::reference, 0}, {}), folded_(folded) {}
  DType compute_type() const override { return DType::f64; }
  std::unique_ptr<kernels::Op> make_op(const kernels::OpDesc& desc) override {
    auto op = kernels::reference::make_op(desc);
    if (!std::holds_alternative<kernels::BatchNormFold>(desc)) return op;
    return std::make_unique<Counted>(std::move(op), folded_);
  }
  kernels::Layout plain_layout(const Shape& shape, DType type) override {
    return kernels::reference::plain_layout(shape, type);
  }
  kernels::Layout with_type(const kernels::TensorDesc& tensor, DType type) override {
    return plain_layout(tensor.shape, type);
  }

 private:
  class Counted final : public kernels::HostOp {
   public:
    Counted(std::unique_ptr<kernels::HostOp> op, int& count) : op_(std::move(op)), count_(count) {
      tensors_ = op_->tensors();
    }
    void execute(std::span<void* const> args, void* workspace) override {
      ++count_;
      op_->execute(args, workspace);
    }

   private:
    std::unique_ptr<kernels::HostOp> op_;
    int& count_;
  };
  int& folded_;
};

}  // namespace

TEST_CASE("folding: a plan folds once for each version of the weights") {
  const Model model = residual_net();
  const engine::NormTable norms(model);
  int folded = 0;
  auto context = std::make_unique<CountingContext>(folded);
  const engine::Plan layouts(model, *context, {.batch = 2}, nullptr, norms);
  const engine::ParameterTable table(model, layouts.parameter_layouts(), context->compute_type());
  engine::Replica replica(model, std::move(context), table, norms, {});
  const Batch batch = random_batch(model, 2);
  const auto folds_after = [&](std::int64_t rows, std::uint64_t version) {
    const engine::Plan& plan = replica.runner.plan({.batch = rows, .training = false, .folds_norms = true});
    replica.runner.bind(0, &plan, {batch.images.data<float>(), batch.labels.data<std::int32_t>(), nullptr, rows});
    replica.runner.fold(0, version);
    replica.compute().synchronize();
    return folded;
  };
  CHECK(folds_after(2, 1) == 6);
  CHECK(folds_after(2, 1) == 6);
  CHECK(folds_after(1, 1) == 12);  // another plan
  CHECK(folds_after(1, 1) == 12);
  CHECK(folds_after(2, 1) == 12);
  CHECK(folds_after(2, 2) == 18);
}

TEST_CASE("folding: evaluation follows every change of weights and running statistics") {
  const Model model = residual_net();
  const Batch batch = random_batch(model, 7);
  DataParallelOptions options = folding(on_cpus(2), FoldNorms::always);
  options.ema_decay = 0.5;
  DataParallel net(model, options);
  const auto check = [&](const char* after) {
    INFO("after " << after);
    CHECK(relative_error(net.predict(batch.images), unfolded(net, batch)) < kSingle);
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

TEST_CASE("folding: evaluate() and predict() agree") {
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
  CHECK(whole == Approx(loss).epsilon(kSingle));
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

TEST_CASE("folding: estimate and refusal count the folded weights of each evaluation plan") {
  const Model model = residual_net();
  for (const FoldNorms fold : {FoldNorms::always, FoldNorms::never})
    for (const std::vector<std::int64_t>& training : {std::vector<std::int64_t>{8}, {}}) {
      const DataParallelOptions options = folding(on_cpus(2), fold);
      DataParallel net(model, options);
      net.prepare(training, {6, 4});
      const auto estimated = estimate_memory(model, options, training, {6, 4});
      for (int i = 0; i < 2; ++i) {
        CHECK(estimated[static_cast<std::size_t>(i)].weights == net.memory_use(i).weights);
        CHECK(estimated[static_cast<std::size_t>(i)].total() == net.memory_use(i).total());
      }
      const auto weights = [&](const std::vector<std::int64_t>& evaluated) {
        return estimate_memory(model, options, training, evaluated)[0].weights;
      };
      const std::size_t none = weights({}), one = weights({6}), two = weights({6, 4});
      CHECK((one > none) == (fold == FoldNorms::always));
      CHECK(two - none == 2 * (one - none));
    }
}
