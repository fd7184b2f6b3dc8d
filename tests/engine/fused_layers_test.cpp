// Plans with fused layers (kernels/fused/op.h): their steps, and results that equal those of unfused plans.
#include <algorithm>

#include "engine/plan/plan.h"
#include "support/catch.h"
#include "support/fusing.h"
#include "support/training.h"

using namespace dp;
using namespace dp::engine;
using namespace dp::test;
using kernels::NormFusion;

namespace {

// Weights, statistics and predictions after three steps; the third uses forward(), backward() and step().
std::vector<NamedTensor> train(const Model& model, const DataParallelOptions& options, NormFusion mode) {
  const Fusing fusing(mode);
  DataParallel net(model, options);
  const Batch batch = random_batch(model, 11);
  const Sgd sgd{.lr = 0.1f, .momentum = 0.9f};
  for (int step = 0; step < 2; ++step) net.train_step(batch, sgd);
  net.backward(cross_entropy(net.forward(batch.images), batch.labels).grad);
  net.step(sgd);
  const Stats stats = net.take_stats();
  Tensor sums(Shape{3}, DType::f64);
  sums.span<double>()[0] = stats.loss_sum;
  sums.span<double>()[1] = static_cast<double>(stats.samples);
  sums.span<double>()[2] = static_cast<double>(stats.top1);
  std::vector<NamedTensor> all = net.weights();
  all.emplace_back("statistics", std::move(sums));
  all.emplace_back("predictions", net.predict(batch.images).clone());
  return all;
}

std::vector<std::string> steps_of(const Model& model, NormFusion mode, const PlanOptions& wanted) {
  kernels::ContextOptions options;
  options.norm_fusion = mode;
  const NormTable norms(model);
  auto context = kernels::backend(DeviceKind::reference).open({DeviceKind::reference, 0}, options);
  const Plan layouts(model, *context, {.batch = 4}, nullptr, norms);
  const ParameterTable table(model, layouts.parameter_layouts(), context->compute_type());
  const Plan plan(model, *context, wanted, &table, norms);
  std::vector<std::string> names;
  for (const auto* const stage : {&plan.forward(), &plan.loss(), &plan.backward()})
    for (const PlanStep& step : *stage)
      if (!step.name.ends_with(" reorder")) names.push_back(step.name);  // converts float32 images for a float64 device
  return names;
}

}  // namespace

TEST_CASE("fused layers: plans with them train to the same bits") {
  for (const Model& model :
       {small_convnet(true), models::mnist_convnet({.classes = 7, .width = 4, .input = {1, 12, 12}})}) {
    INFO(model.name());
    CHECK(bit_equal(train(model, on_reference(), NormFusion::always), train(model, on_reference(), NormFusion::never)));
    for (const int replicas : {1, 2})
      for (const int micro_batches : {1, 3})
        for (const LossAt loss : {LossAt::local, LossAt::gathered}) {
          DataParallelOptions options = on_cpus(replicas);
          options.grad_accum_steps = micro_batches;
          options.loss = loss;
          INFO("replicas " << replicas << ", micro-batches " << micro_batches << ", loss " << static_cast<int>(loss));
          CHECK(bit_equal(train(model, options, NormFusion::always), train(model, options, NormFusion::never)));
        }
  }
}

// The dropout is the ReLU's only reader, so the ReLU stays fused into the convolution. The ReLU's gradient needs the
// convolution's output.
TEST_CASE("fused layers: a pool after an inactive dropout trains to the same bits") {
  ModelBuilder m("idle_dropout", Shape{4, 8, 8});
  ModelBuilder::Node x = m.relu(m.conv2d("conv1", m.input(), {.out_channels = 6, .kernel = 3, .padding = 1}));
  x = m.max_pool2d(m.dropout("dropout", x, 0.5f), {.kernel = 2, .stride = 2});
  const Model model = m.build(m.linear("fc", m.flatten(x), {.out_features = 5}));
  DataParallelOptions options = on_cpus(1);
  options.dropout = false;
  CHECK(bit_equal(train(model, options, NormFusion::always), train(model, options, NormFusion::never)));
}

TEST_CASE("fused layers: mnist_convnet has ten steps") {
  const Model model = models::mnist_convnet();
  const PlanOptions training{.batch = 4, .joins_loss = true};
  CHECK(steps_of(model, NormFusion::always, training) ==
        std::vector<std::string>{"conv1+relu", "conv2+relu+max_pool+dropout1", "fc1+relu+dropout2", "fc2+loss",
                                 "fc2 backward", "fc1+relu backward_weights", "fc1+relu backward_data",
                                 "conv2 backward_weights", "conv2 backward_data", "conv1+relu backward_weights"});
  CHECK(steps_of(model, NormFusion::never, training).size() > 14);
  // If the caller needs the logits, the loss is a separate op.
  const auto apart = steps_of(model, NormFusion::always, {.batch = 4});
  CHECK(std::ranges::find(apart, "loss") != apart.end());
}
