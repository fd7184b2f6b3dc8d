#include "engine/plan/op_work.h"

#include <map>
#include <memory>
#include <numeric>
#include <span>

#include "dp/data_parallel.h"
#include "dp/models.h"
#include "engine/layers/parameters.h"
#include "engine/plan/plan_table.h"
#include "kernels/device/backend.h"
#include "support/catch.h"
#include "support/training.h"

using namespace dp;
using namespace dp::engine;

namespace {

// The steps of a training plan of 4 rows on the reference device.
class Planned {
 public:
  explicit Planned(const Model& model, bool split_backward = false)
      : norms_(model),
        context_(kernels::backend(DeviceKind::reference).open({DeviceKind::reference, 0}, unfused())),
        table_(model, Plan(model, *context_, {.batch = 4}, nullptr, norms_).parameter_layouts(),
               context_->compute_type()),
        plan_(model, *context_, {.batch = 4, .split_backward = split_backward}, &table_, norms_) {}
  const Plan& plan() const { return plan_; }

 private:
  static kernels::ContextOptions unfused() {
    kernels::ContextOptions options;
    options.norm_fusion = kernels::NormFusion::never;
    return options;
  }

  NormTable norms_;
  std::unique_ptr<kernels::Context> context_;
  ParameterTable table_;
  Plan plan_;
};

PlanStep step_of(kernels::OpDesc desc, std::vector<kernels::TensorDesc> tensors,
                 const std::vector<Space>& spaces = {}) {
  PlanStep step{.name = "a op", .node = "a", .desc = std::move(desc), .op = {}};
  step.op = std::make_unique<test::NeverRun>(std::move(tensors));
  for (const Space space : spaces) step.args[static_cast<std::size_t>(step.arg_count++)].space = space;
  return step;
}

}  // namespace

TEST_CASE("op work: kernel, stride and padding of a convolution are those of its layer, forward and backward") {
  const Planned planned(models::resnet18({.classes = 10, .input = {3, 32, 32}}));
  std::map<std::string, std::map<std::string, std::vector<std::int64_t>>> found;  // by layer, by kind
  for (const auto* stage : {&planned.plan().forward(), &planned.plan().backward()})
    for (const PlanStep& step : *stage) {
      const OpWork work = work_of(step);
      if (!work.convolution.empty()) found[work.label][work.kind] = work.convolution;
    }
  using Numbers = std::vector<std::int64_t>;  // as in OpWork::convolution
  for (const char* kind : {"conv2d_forward", "conv2d_backward_data", "conv2d_backward_weights"}) {
    INFO(kind);
    CHECK(found["layer2.0.conv1"][kind] == Numbers{4, 64, 32, 32, 128, 3, 3, 2, 2, 1, 1, 1, 1, 1});
    CHECK(found["layer2.0.downsample.0"][kind] == Numbers{4, 64, 32, 32, 128, 1, 1, 2, 2, 0, 0, 1, 1, 1});
    CHECK(found["layer4.1.conv2"][kind] == Numbers{4, 512, 4, 4, 512, 3, 3, 1, 1, 1, 1, 1, 1, 1});
  }
  CHECK(found["fc"]["linear_forward"] == Numbers{4, 512, 1, 1, 10, 1, 1, 1, 1, 0, 0, 1, 1, 1});
}

TEST_CASE("op work: a depthwise convolution multiplies with the weights of one channel for each result") {
  ModelBuilder m("net", {6, 9, 12});
  const auto x = m.conv2d("c", m.input(), {.out_channels = 12, .kernel = {3, 5}, .dilation = {2, 1}, .groups = 6});
  const Planned planned(m.build(m.linear("fc", m.flatten(x), {.out_features = 2})));
  for (const PlanStep& step : planned.plan().forward()) {
    const OpWork work = work_of(step);
    if (work.label != "c" || work.convolution.empty()) continue;
    CHECK(work.flops == 2.0 * 4 * 12 * 5 * 8 * 15);
    CHECK(work.convolution == std::vector<std::int64_t>{4, 6, 9, 12, 12, 3, 5, 1, 1, 0, 0, 2, 1, 6});
    return;
  }
  FAIL("no convolution");
}

TEST_CASE("op work: a product counts a multiplication and an addition per weight and output cell") {
  const Model model = models::mnist_convnet();
  const Planned planned(model);
  const auto flops_of = [](const std::vector<PlanStep>& steps) {
    double sum = 0;
    for (const PlanStep& step : steps) sum += work_of(step).flops;
    return sum;
  };
  std::vector<double> expected;  // of each layer with weights
  for (const Layer& layer : model.layers()) {
    const double cells = 2.0 * 4 * static_cast<double>(layer.output.numel());
    const auto input = [&] { return model.layers()[static_cast<std::size_t>(layer.inputs.front())].output; };
    if (const auto* conv = std::get_if<Conv2d>(&layer.kind))
      expected.push_back(cells * static_cast<double>(input()[0]) * conv->kernel.h * conv->kernel.w);
    if (std::holds_alternative<Linear>(layer.kind)) expected.push_back(cells * static_cast<double>(input().numel()));
  }
  const double all = std::accumulate(expected.begin(), expected.end(), 0.0);
  CHECK(expected.size() == 4);
  CHECK(flops_of(planned.plan().forward()) + flops_of(planned.plan().loss()) == all);
  CHECK(flops_of(planned.plan().backward()) == 2 * all - expected.front());  // the images have no gradient
}

TEST_CASE("op work: a fused op counts the products of its members and the tensors that exist in memory") {
  using namespace kernels;
  const auto context = backend(DeviceKind::reference).open({DeviceKind::reference, 0}, {});
  const auto desc = [&](const Shape& shape) {
    return TensorDesc{shape, DType::f64, context->plain_layout(shape, DType::f64)};
  };
  const TensorDesc x = desc({4, 8, 6, 6}), w = desc({16, 8, 3, 3}), y = desc({4, 16, 6, 6}),
                   pooled = desc({4, 16, 3, 3});
  const double x_bytes = 8 * 4 * 8 * 36, w_bytes = 8 * 16 * 72, y_bytes = 8 * 4 * 16 * 36, pooled_bytes = y_bytes / 4;
  const double conv = 2.0 * 4 * 16 * 36 * 72;
  const Window window{.kernel = 3, .stride = 1, .padding = 1}, pool{.kernel = 2, .stride = 2, .padding = 0};
  const TensorDesc rows = desc({4, 32}), matrix = desc({10, 32}), logits = desc({4, 10});
  const double rows_bytes = 8 * 4 * 32, matrix_bytes = 8 * 10 * 32, logits_bytes = 8 * 4 * 10;
  const double linear = 2.0 * 4 * 10 * 32;
  const LinearForward forward{rows, matrix, logits};
  const LinearBackwardData data{logits, matrix, rows};

  struct Row {
    PlanStep step;
    std::string kind;
    double flops, bytes;
    bool named = true;  // work.convolution is set
  };
  std::vector<Row> all;
  all.push_back(
      {step_of(Conv2dPoolForward{{x, w, y, window}, {.x = y, .y = pooled, .window = pool}}, {x, w, y, pooled}),
       "conv2d_forward", conv, x_bytes + w_bytes + pooled_bytes});
  all.push_back({step_of(Conv2dReluBackwardData{{y, w, x, window}}, {y, w, x}), "conv2d_backward_data", conv,
                 x_bytes + w_bytes + y_bytes});
  all.push_back({step_of(LinearDropoutForward{forward, {}}, {rows, matrix, logits}), "linear_forward", linear,
                 rows_bytes + matrix_bytes + logits_bytes});
  all.push_back({step_of(LinearLoss{forward, {}}, {rows, matrix, logits}), "linear_forward", linear,
                 rows_bytes + matrix_bytes + logits_bytes});
  all.push_back(
      {step_of(LinearPoolBackwardData{data, {.dy = rows, .dx = x, .window = pool}}, {logits, matrix, rows, x}),
       "linear_backward_data", linear, logits_bytes + matrix_bytes + x_bytes});
  all.push_back({step_of(LinearReluBackward{{rows, logits, matrix}, data}, {rows, logits, matrix}), "linear_backward",
                 2 * linear, rows_bytes + logits_bytes + matrix_bytes});
  all.push_back({step_of(NormConv2dForward{x, w, y, window}, {x, w, y}), "norm_conv2d_forward", conv,
                 x_bytes + w_bytes + y_bytes, false});
  all.push_back({step_of(NormConv2dBackwardWeights{x, y, w, window}, {x, y, w}), "norm_conv2d_backward_weights", conv,
                 x_bytes + w_bytes + y_bytes, false});
  // It also reads the normalisation's input x, and with add and relu dy2 and y.
  all.push_back({step_of(NormConv2dBackwardData{y, w, x, window}, {y, w, x}), "norm_conv2d_backward_data", conv,
                 2 * x_bytes + w_bytes + y_bytes, false});
  all.push_back({step_of(NormConv2dBackwardData{y, w, x, window, true, true}, {y, w, x}), "norm_conv2d_backward_data",
                 conv, 4 * x_bytes + w_bytes + y_bytes, false});
  all.push_back({step_of(NormConv2dBackwardData{y, w, x, window, true, false, true}, {y, w, x}),
                 "norm_conv2d_backward_data", conv, 2 * x_bytes + w_bytes + y_bytes, false});
  // Ops without weights.
  all.push_back({step_of(MaxPool2dForward{.x = y, .y = pooled, .window = pool}, {y, pooled}), "max_pool2d_forward", 0,
                 y_bytes + pooled_bytes, false});
  all.push_back({step_of(ReluBackward{.x = x}, {x}, {Space::activation, Space::activation, Space::activation}),
                 "relu_backward", 0, 3 * x_bytes, false});
  all.push_back(
      {step_of(ReluForward{.x = x}, {x}, {Space::input, Space::activation}), "relu_forward", 0, 2 * x_bytes, false});
  // The statistics do not count, although they are in the activation arena.
  all.push_back(
      {step_of(BatchNormForward{.x = x}, {x},
               {Space::activation, Space::activation, Space::value, Space::value, Space::none, Space::activation}),
       "batch_norm_forward", 0, 2 * x_bytes, false});
  all.push_back({step_of(BatchNormMoments{.x = x}, {x}, {Space::activation, Space::moments}), "batch_norm_moments", 0,
                 x_bytes, false});
  all.push_back({step_of(BatchNormMoments{.x = x}, {x}, {Space::activation, Space::moments, Space::activation}),
                 "batch_norm_moments", 0, x_bytes, false});
  for (const Row& row : all) {
    INFO(row.kind);
    const OpWork work = work_of(row.step);
    CHECK(work.kind == row.kind);
    CHECK(work.label == "a");
    CHECK(work.flops == row.flops);
    CHECK(work.bytes == row.bytes);
    CHECK(work.convolution.empty() == !row.named);
  }
}

TEST_CASE("op work: the key has the op, its implementation, its bytes, and the shape and layout of each tensor") {
  using namespace kernels;
  const TensorDesc from{{2, 3}, DType::f32, {":plain", 24, nullptr}}, to{{3, 2}, DType::f32, {":turned", 32, nullptr}};
  CHECK(work_of(step_of(Reorder{from, to}, {from, to})).shape == "reorder none 56.000000 (2, 3):plain (3, 2):turned");
}

TEST_CASE("op work: the lower bound is the longer of arithmetic and memory traffic, and 0 without rates") {
  const OpWork work{.kind = "", .label = "", .shape = "", .flops = 100, .bytes = 10, .convolution = {}};
  CHECK(floor_of(work, {.flops = 50, .bytes = 2.5, .source = ""}) == 4);
  CHECK(floor_of(work, {.flops = 20, .bytes = 2.5, .source = ""}) == 5);
  CHECK(floor_of(work, {}) == 0);
}

TEST_CASE("op work: the lower bound of a plan is the sum over the steps of all its stages") {
  const Model model = models::mnist_convnet({.classes = 7, .width = 4, .input = {1, 12, 12}});
  const Planned planned(model, true);
  const Plan& plan = planned.plan();
  const kernels::Rates rates{.flops = 1e9, .bytes = 1e9, .source = ""};
  double sum = 0;
  for (const auto* stage : {&plan.forward(), &plan.loss(), &plan.backward(), &plan.weight_gradients()}) {
    double own = 0;
    for (const PlanStep& step : *stage) own += floor_of(work_of(step), rates);
    if (stage != &plan.loss()) CHECK(own > 0);
    sum += own;
  }
  CHECK(floor_of(plan, rates) == Approx(sum).epsilon(1e-12));
}

TEST_CASE("op work: an update reads and writes weights and momenta, and reads gradients") {
  const OpWork work = update_work(1000);
  CHECK(work.kind == "sgd_update");
  CHECK(work.label == "all parameters");
  CHECK(work.shape == "update");
  CHECK(work.flops == 0);
  CHECK(work.bytes == 20000);
  CHECK(work.convolution.empty());
}

namespace {

const Model& wide() {
  static const Model model = [] {
    ModelBuilder m("wide", Shape{32, 16, 16});
    const auto features = m.conv2d("conv", m.input(), {.out_channels = 64, .kernel = 3, .padding = 1});
    return m.build(m.linear("fc", m.flatten(features), {.out_features = 10}));
  }();
  return model;
}

}  // namespace

TEST_CASE("the lower bound of a step is known once one was planned") {
  DataParallel net(wide(), test::on_cpus(1));
  CHECK(net.step_floor(32) == 0);
  net.train_step(test::random_batch(wide(), 32), Sgd{.lr = 0});
  net.take_stats();
  CHECK(net.step_floor(32) > 0);
}

TEST_CASE("op work: a product moves its tensors, and a copy of channels only these channels") {
  ModelBuilder m("channels", Shape{4, 8, 8});
  const auto x = m.conv2d("conv", m.input(), {.out_channels = 4, .kernel = 1});
  const auto y = m.concat({m.multiply(x, m.global_avg_pool2d(x)), m.slice(x, 1, 2)});
  const Planned planned(m.build(m.linear("fc", m.flatten(y), {.out_features = 3})));
  std::map<std::string, std::vector<double>> bytes;  // by op and layer
  for (const auto* stage : {&planned.plan().forward(), &planned.plan().backward()})
    for (const PlanStep& step : *stage) {
      const OpWork work = work_of(step);
      if (work.kind.starts_with("multiply") || work.kind.starts_with("copy"))
        bytes[work.kind + " " + work.label].push_back(work.bytes);
    }
  constexpr double kChannel = 4 * 8 * 8 * sizeof(double), kTensor = 4 * kChannel, kFactors = 4 * 4 * sizeof(double);
  CHECK(bytes == std::map<std::string, std::vector<double>>{
                     {"multiply_forward multiply", {2 * kTensor + kFactors}},
                     {"multiply_backward multiply", {3 * kTensor + 2 * kFactors}},
                     {"copy_channels slice", {4 * kChannel, 4 * kChannel}},
                     {"copy_channels concat", {8 * kChannel, 4 * kChannel, 8 * kChannel, 4 * kChannel}}});
}

TEST_CASE("op work: a group normalisation moves two tensors forward and three backward, with weights and without") {
  ModelBuilder m("groups", Shape{4, 8, 8});
  auto x = m.conv2d("conv", m.input(), {.out_channels = 4, .kernel = 1});
  x = m.instance_norm2d("plain", m.group_norm("affine", x, {.groups = 2}));
  const Planned planned(m.build(m.linear("fc", m.flatten(x), {.out_features = 3})));
  std::map<std::string, double> bytes;  // by op and layer
  for (const auto* stage : {&planned.plan().forward(), &planned.plan().backward()})
    for (const PlanStep& step : *stage) {
      const OpWork work = work_of(step);
      if (work.kind.starts_with("group_norm")) bytes[work.kind + " " + work.label] = work.bytes;
    }
  constexpr double kTensor = 4 * 4 * 8 * 8 * sizeof(double);
  CHECK(bytes == std::map<std::string, double>{{"group_norm_forward affine", 2 * kTensor},
                                               {"group_norm_forward plain", 2 * kTensor},
                                               {"group_norm_backward affine", 3 * kTensor},
                                               {"group_norm_backward plain", 3 * kTensor}});
}
