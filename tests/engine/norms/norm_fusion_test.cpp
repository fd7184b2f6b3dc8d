// Plans in which convolutions do part of a batch normalisation: which part, when, and that the result is the same.
#include "engine/layers/nodes.h"

#include <algorithm>
#include <map>

#include "engine/plan/plan.h"
#include "kernels/device/host/host_context.h"
#include "kernels/device/reference/reference_op.h"
#include "support/catch.h"
#include "support/fusing.h"
#include "support/training.h"

using namespace dp;
using namespace dp::engine;
using namespace dp::test;
using kernels::NormFusion;

namespace {

// Weights, running statistics and predictions after two steps.
std::vector<NamedTensor> train(const Model& model, const DataParallelOptions& options, NormFusion mode) {
  const Fusing fusing(mode);
  DataParallel net(model, options);
  Sgd sgd;
  sgd.lr = 0.1f;
  sgd.momentum = 0.9f;
  const Batch batch = random_batch(model, 11);
  for (int step = 0; step < 2; ++step) net.train_step(batch, sgd);
  std::vector<NamedTensor> all = net.weights();
  all.emplace_back("predictions", net.predict(batch.images).clone());
  return all;
}

// A reference device that reports the given op times as measured.
class MeasuredContext final : public kernels::HostContext {
 public:
  explicit MeasuredContext(std::map<std::string, double> seconds)
      : HostContext({DeviceKind::reference, 0}, {}), seconds_(std::move(seconds)) {}
  DType compute_type() const override { return DType::f64; }
  std::unique_ptr<kernels::Op> make_op(const kernels::OpDesc& desc) override {
    return kernels::reference::make_op(desc);
  }
  kernels::Layout plain_layout(const Shape& shape, DType type) override {
    return kernels::reference::plain_layout(shape, type);
  }
  kernels::Layout with_type(const kernels::TensorDesc& tensor, DType type) override {
    return plain_layout(tensor.shape, type);
  }
  NormFusion norm_fusion() const override { return NormFusion::measured; }
  std::optional<double> seconds_of(const kernels::OpDesc& desc) override {
    make_op(desc);  // checks its shapes
    std::string name = name_of(desc);
    if (const auto* const forward = std::get_if<kernels::NormConv2dForward>(&desc))
      name += forward->norm ? " norm" : "";
    if (const auto* const data = std::get_if<kernels::NormConv2dBackwardData>(&desc))
      name += data->renormalize ? " renormalize" : "";
    const auto known = seconds_.find(name);
    if (known == seconds_.end()) return {};
    return known->second;
  }

 private:
  std::map<std::string, double> seconds_;
};

std::vector<std::string> steps_of(const std::vector<PlanStep>& steps) {
  std::vector<std::string> names;
  for (const PlanStep& step : steps) names.push_back(step.name);
  return names;
}

bool has(const std::vector<std::string>& names, const std::string& name) {
  return std::ranges::find(names, name) != names.end();
}

}  // namespace

TEST_CASE("norm fusion: each convolution offers the parts of a normalisation that it can compute") {
  const std::vector<Node> nodes = fuse(residual_net(), true);
  const auto name = [&](int i) { return i < 0 ? "-" : nodes[static_cast<std::size_t>(i)].name; };
  const auto found = [&](bool adjacent) {
    std::map<std::string, std::string> all;
    const std::vector<NormNeighbours> neighbours = norm_neighbours(nodes, adjacent);
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      const NormNeighbours& own = neighbours[i];
      if (nodes[i].kind == NodeKind::norm)
        all[nodes[i].name] = name(own.moments) + " " + name(own.gradient) + " " + name(own.reader);
      if (own.normalizes >= 0)
        CHECK(neighbours[static_cast<std::size_t>(own.normalizes)].moments == static_cast<int>(i));
    }
    return all;
  };
  std::map<std::string, std::string> expected{{"bn1+relu", "conv1 a.conv1 -"},
                                              {"a.bn1+relu", "a.conv1 a.conv2 a.conv2"},
                                              {"a.bn2+add+relu", "a.conv2 b.conv1 -"},
                                              {"b.bn1+relu", "b.conv1 b.conv2 b.conv2"},
                                              {"b.downsample.1", "b.downsample.0 - -"},
                                              {"b.bn2+add+relu", "b.conv2 - -"},
                                              {"c.bn+add", "- - -"}};
  CHECK(found(false) == expected);
  expected["b.bn2+add+relu"] = "- - -";  // another convolution and its normalisation run between
  CHECK(found(true) == expected);
}

TEST_CASE("norm fusion: fused plans train to the same bits") {
  for (const bool relu : {true, false}) {
    const Model model = residual_net(relu);
    CHECK(bit_equal(train(model, on_reference(), NormFusion::always), train(model, on_reference(), NormFusion::never)));
    for (const int replicas : {1, 2})
      for (const BatchNormMode mode : {BatchNormMode::master, BatchNormMode::pooled, BatchNormMode::sync})
        for (const int micro_batches : {1, 2}) {
          if (!relu && (replicas == 1 || micro_batches == 1)) continue;  // saves time
          DataParallelOptions options = on_cpus(replicas);
          options.batch_norm = mode;
          options.grad_accum_steps = micro_batches;
          INFO("relu " << relu << ", replicas " << replicas << ", mode " << static_cast<int>(mode) << ", micro-batches "
                       << micro_batches);
          CHECK(bit_equal(train(model, options, NormFusion::always), train(model, options, NormFusion::never)));
        }
  }
}

TEST_CASE("norm fusion: a normalised tensor with one reader needs no memory") {
  const Model model = residual_net();
  const NormTable norms(model);
  const auto plan_of = [&](NormFusion mode, bool training) {
    kernels::ContextOptions options;
    options.norm_fusion = mode;
    auto context = kernels::backend(DeviceKind::reference).open({DeviceKind::reference, 0}, options);
    const Plan layouts(model, *context, {.batch = 4}, nullptr, norms);
    const ParameterTable table(model, layouts.parameter_layouts(), context->compute_type());
    return Plan(model, *context, {.batch = 4, .training = training}, &table, norms);
  };
  for (const bool training : {true, false}) {
    const Plan fused = plan_of(NormFusion::always, training), apart = plan_of(NormFusion::never, training);
    CHECK(has(steps_of(apart.forward()), "a.bn1+relu"));
    CHECK(!has(steps_of(fused.forward()), "a.bn1+relu"));
    CHECK(has(steps_of(fused.forward()), "bn1+relu"));  // has two readers
    CHECK(has(steps_of(apart.forward()), "a.bn1+relu moments") == training);
    CHECK(!has(steps_of(fused.forward()), "a.bn1+relu moments"));
    CHECK(has(steps_of(fused.forward()), "a.bn1+relu statistics") == !training);  // in training the moments op does it
    if (training) {
      CHECK(fused.arena_bytes() < apart.arena_bytes());
      CHECK(has(steps_of(apart.backward()), "bn1+relu backward sums"));
      CHECK(!has(steps_of(fused.backward()), "bn1+relu backward sums"));
    }
  }
}

TEST_CASE("norm fusion: a normalised tensor is left out if that was measured to be faster") {
  const Model model = residual_net();
  const NormTable norms(model);
  std::map<std::string, double> seconds{{"batch_norm_forward", 2},
                                        {"norm_conv2d_forward", 5},
                                        {"norm_conv2d_forward norm", 6},
                                        {"conv2d_backward_weights", 4},
                                        {"norm_conv2d_backward_weights", 4.4},
                                        {"norm_conv2d_backward_data", 5},
                                        {"norm_conv2d_backward_data renormalize", 5.5}};
  const auto stored = [&](const std::map<std::string, double>& times, bool training) {
    MeasuredContext context(times);
    const Plan layouts(model, context, {.batch = 4}, nullptr, norms);
    const ParameterTable table(model, layouts.parameter_layouts(), context.compute_type());
    const Plan plan(model, context, {.batch = 4, .training = training}, &table, norms);
    CHECK(has(steps_of(plan.forward()), "a.bn1+relu moments") == false);
    return has(steps_of(plan.forward()), "a.bn1+relu");
  };
  CHECK(!stored(seconds, true));
  seconds["norm_conv2d_backward_weights"] = 4.6;  // 16.1 instead of 16
  CHECK(stored(seconds, true));
  seconds["norm_conv2d_backward_weights"] = 4.4;
  for (const auto& [op, time] : seconds) {
    std::map<std::string, double> unknown = seconds;
    unknown.erase(op);
    INFO(op);
    CHECK(stored(unknown, true));
  }
  // Evaluation considers forward ops only.
  const std::map<std::string, double> evaluation{
      {"batch_norm_forward", 2}, {"conv2d_forward", 4}, {"norm_conv2d_forward norm", 5.9}};
  CHECK(!stored(evaluation, false));
  CHECK(stored({{"batch_norm_forward", 2}, {"conv2d_forward", 4}, {"norm_conv2d_forward norm", 6.1}}, false));
}
