#include "engine/plan/op_work.h"

#include <chrono>
#include <map>
#include <numeric>

#include "dp/data_parallel.h"
#include "dp/models.h"
#include "engine/plan/parameters.h"
#include "kernels/backend.h"
#include "support/catch.h"
#include "support/sanitized.h"
#include "support/training.h"

using namespace dp;
using namespace dp::engine;

namespace {

// The steps of a training plan of 4 rows on the reference device.
class Planned {
 public:
  explicit Planned(const Model& model)
      : norms_(model),
        context_(kernels::backend(DeviceKind::reference).open({DeviceKind::reference, 0}, unfused())),
        table_(model, Plan(model, *context_, {.batch = 4}, nullptr, norms_).parameter_layouts(),
               context_->compute_type()),
        plan_(model, *context_, {.batch = 4}, &table_, norms_) {}
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

}  // namespace

TEST_CASE("op work: kernel, stride and padding of a convolution are those of its layer, forward and backward") {
  const Planned planned(models::resnet18({.classes = 10, .input = {3, 32, 32}}));
  std::map<std::string, std::map<std::string, std::vector<std::int64_t>>> found;  // by layer, by kind
  for (const auto* stage : {&planned.plan().forward(), &planned.plan().backward()})
    for (const PlanStep& step : *stage) {
      const OpWork work = work_of(step);
      if (!work.convolution.empty()) found[work.label][work.kind] = work.convolution;
    }
  using Numbers = std::vector<std::int64_t>;  // N,C,H,W,O,kernel,stride,padding
  for (const char* kind : {"conv2d_forward", "conv2d_backward_data", "conv2d_backward_weights"}) {
    INFO(kind);
    CHECK(found["layer2.0.conv1"][kind] == Numbers{4, 64, 32, 32, 128, 3, 2, 1});
    CHECK(found["layer2.0.downsample.0"][kind] == Numbers{4, 64, 32, 32, 128, 1, 2, 0});
    CHECK(found["layer4.1.conv2"][kind] == Numbers{4, 512, 4, 4, 512, 3, 1, 1});
  }
  CHECK(found["fc"]["linear_forward"] == Numbers{4, 512, 1, 1, 10, 1, 1, 0});
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
      expected.push_back(cells * static_cast<double>(input()[0]) * conv->kernel * conv->kernel);
    if (std::holds_alternative<Linear>(layer.kind)) expected.push_back(cells * static_cast<double>(input().numel()));
  }
  const double all = std::accumulate(expected.begin(), expected.end(), 0.0);
  CHECK(expected.size() == 4);
  CHECK(flops_of(planned.plan().forward()) + flops_of(planned.plan().loss()) == all);
  CHECK(flops_of(planned.plan().backward()) == 2 * all - expected.front());  // the images have no gradient
}

TEST_CASE("the lower bound of a step is known once one was planned, and no step is much faster") {
  ModelBuilder m("wide", Shape{32, 16, 16});
  const auto features = m.conv2d("conv", m.input(), {.out_channels = 64, .kernel = 3, .padding = 1});
  const Model model = m.build(m.linear("fc", m.flatten(features), {.out_features = 10}));
  DataParallel net(model, test::on_cpus(1));
  CHECK(net.step_floor(32) == 0);
  const Batch batch = test::random_batch(model, 32);
  double fastest = 1e9;
  for (int step = 0; step < 10; ++step) {
    const auto begin = std::chrono::steady_clock::now();
    net.train_step(batch, Sgd{.lr = 0});
    net.take_stats();
    fastest = std::min(fastest, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  const double floor = net.step_floor(32);
  CHECK(floor > 0);
  if (test::kSanitized) return;  // instrumented code does not reach the peak rate
  // About 0.5 of the fastest step on an idle machine. A busy machine can slow the measurement of the rates more than
  // the steps.
  CHECK(floor < 3 * fastest);
}
