// The text of --print-plan, and the all-gathers of a plan.
#include <algorithm>
#include <memory>

#include "dp/error.h"
#include "engine/plan/plan.h"
#include "support/catch.h"

using namespace dp;
using namespace dp::engine;

namespace {

// A plan on the reference device.
class Planned {
 public:
  Planned(const Model& model, const PlanOptions& options)
      : norms_(model),
        context_(kernels::backend(DeviceKind::reference).open({DeviceKind::reference, 0}, {})),
        table_(model, Plan(model, *context_, options, nullptr, norms_).parameter_layouts(), context_->compute_type()),
        plan_(model, *context_, options, &table_, norms_) {}
  const Plan& plan() const { return plan_; }

 private:
  NormTable norms_;
  std::unique_ptr<kernels::Context> context_;
  ParameterTable table_;
  Plan plan_;
};

std::string wide(std::string text, std::size_t width) {
  text.resize(std::max(text.size(), width), ' ');
  return text;
}

// The lines that are indented by two spaces.
std::vector<std::string> titles_of(const std::string& text) {
  std::vector<std::string> titles;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    const std::string line = text.substr(begin, end - begin);
    if (line.starts_with("  ") && line[2] != ' ') titles.push_back(line.substr(2));
    begin = end + 1;
  }
  return titles;
}

Model normalised() {
  ModelBuilder m("normalised", Shape{2, 4, 4});
  const auto x = m.relu(m.batch_norm2d("bn", m.conv2d("conv", m.input(), {.out_channels = 3, .bias = false})));
  return m.build(m.linear("fc", m.flatten(x), {.out_features = 2}));
}

std::string rejected(const Model& model, const PlanOptions& options) {
  try {
    Planned(model, options);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::usage);
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a plan's description has every step with its op, places, layouts, bytes and kernels") {
  ModelBuilder m("wide", Shape{1024});
  const Model model = m.build(m.linear("fc", m.input(), {.out_features = 512}));
  const Planned planned(model, {.batch = 128, .training = false});
  const auto line = [](const std::string& name, const std::string& rest) {
    return "    " + wide(name, 40) + " " + wide("plain", 24) + " " + rest;
  };
  const std::string head =
      "plan for 128 rows, evaluation: 3 steps, activations 1.5 MiB, workspace 0.0 MiB, 1 reorders\n  forward\n";
  const std::string reorder = line("fc reorder", "[input act+0] plain:f32(128, 1024) plain:f64(128, 1024) | 1.50 MiB");
  const std::string layer = line("fc",
                                 "[act+0 val+0 val+400000 act+100000] plain:f64(128, 1024) plain:f64(512, 1024) "
                                 "plain:f64(128, 512) | 5.50 MiB");
  const std::string loss = "  loss\n" + line("loss", "[act+100000 labels state - results -] | 0.00 MiB\n");
  CHECK(planned.plan().describe() == head + reorder + "\n" + layer + "\n" + loss);

  const auto kernels_of = [](const PlanStep& step) -> std::vector<std::string> {
    if (step.name == "fc reorder") return {"copy"};
    if (step.name == "fc") return {"gemm", "copy"};
    return {};
  };
  CHECK(planned.plan().describe(kernels_of) == head + reorder + " | 1 kernel: copy\n" + layer +
                                                   " | 2 kernels: gemm copy\n" + loss +
                                                   "  3 kernels\n       2 copy\n       1 gemm\n");
}

TEST_CASE("a plan's description has the stages of the plan in order") {
  using Titles = std::vector<std::string>;
  const Planned training(normalised(), {.batch = 4, .split_backward = true});
  CHECK(titles_of(training.plan().describe()) ==
        Titles{"forward", "loss", "backward", "weight gradients", "running statistics"});
  // Steps of the running statistics do not count, because only one replica runs them.
  const Plan& plan = training.plan();
  const std::size_t steps =
      plan.forward().size() + plan.loss().size() + plan.backward().size() + plan.weight_gradients().size();
  CHECK(plan.describe().starts_with("plan for 4 rows, training: " + std::to_string(steps) + " steps, "));
  const Planned evaluation(normalised(), {.batch = 4, .training = false, .folds_norms = true});
  CHECK(titles_of(evaluation.plan().describe()) == Titles{"folded weights, once per update", "forward", "loss"});
  // The convolution's fold; a reorder, two layers and the loss.
  CHECK(evaluation.plan().describe().starts_with("plan for 4 rows, evaluation: 5 steps, "));
}

TEST_CASE("a plan without rows or without an output of shape (classes,) is rejected with the remedy") {
  CHECK(rejected(normalised(), {.batch = 0}) == "a plan needs at least one row");
  ModelBuilder m("open_end", Shape{1, 8, 8});
  const Model open = m.build(m.conv2d("conv", m.input(), {.out_channels = 2}));
  CHECK(rejected(open, {.batch = 1}) ==
        "model 'open_end' ends in (2, 6, 6); its output must be one row of class scores: flatten it");
  CHECK(rejected(open, {.batch = 1, .last = false}).empty());
}
