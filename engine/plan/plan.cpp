#include "engine/plan/plan.h"

#include <fmt/format.h>

#include <iterator>
#include <map>

#include "dp/error.h"
#include "engine/layers/layers.h"
#include "engine/plan/op_work.h"

namespace dp::engine {

namespace {

void forward_node(Planner& plan, const Node& node, NodeResult& result) {
  if (result.joined) return;
  const PlanValue& x = plan.result_of(node.inputs[0]);
  switch (node.kind) {
    case NodeKind::conv: return forward_conv(plan, node, x, result);
    case NodeKind::conv_transpose: return forward_conv_transpose(plan, node, x, result);
    case NodeKind::linear: return forward_linear(plan, node, x, result);
    case NodeKind::norm: return forward_norm(plan, node, x, result);
    case NodeKind::group_norm: return forward_group_norm(plan, node, x, result);
    case NodeKind::max_pool: return forward_max_pool(plan, node, x, result);
    case NodeKind::avg_pool: return forward_avg_pool(plan, node, x, result);
    case NodeKind::resample: return forward_resample(plan, node, x, result);
    case NodeKind::add: return forward_add(plan, node, x, result);
    case NodeKind::multiply: return forward_multiply(plan, node, x, result);
    case NodeKind::concat: return forward_concat(plan, node, x, result);
    case NodeKind::slice: return forward_slice(plan, node, x, result);
    case NodeKind::channel_shuffle: return forward_channel_shuffle(plan, node, x, result);
    case NodeKind::relu: return forward_relu(plan, node, x, result);
    case NodeKind::activation: return forward_activation(plan, node, x, result);
    case NodeKind::prelu: return forward_prelu(plan, node, x, result);
    case NodeKind::reshape: return forward_reshape(plan, node, x, result);
    case NodeKind::softmax: return forward_softmax(plan, node, x, result);
    case NodeKind::dropout: return forward_dropout(plan, node, x, result);
    case NodeKind::drop_channels: return forward_drop_channels(plan, node, x, result);
  }
}

void backward_node(Planner& plan, const Node& node, const NodeResult& result, std::vector<NodeGradient> gradients) {
  if (node.kind == NodeKind::norm) return backward_norm(plan, node, result, std::move(gradients));
  if (result.unpooled) return plan.gradients.give(node.inputs[0], gradients.front().value, true);
  NodeGradient dy = plan.gradients.sum(node, result, std::move(gradients));
  const bool ends_in_relu = node.relu && node.kind != NodeKind::max_pool && !result.masked;
  if (ends_in_relu || node.kind == NodeKind::relu) dy = backward_relu(plan, node, dy, result);
  switch (node.kind) {
    case NodeKind::conv: return backward_conv(plan, node, dy, result);
    case NodeKind::conv_transpose: return backward_conv_transpose(plan, node, dy, result);
    case NodeKind::linear: return backward_linear(plan, node, dy, result);
    case NodeKind::group_norm: return backward_group_norm(plan, node, dy, result);
    case NodeKind::max_pool: return backward_max_pool(plan, node, dy, result);
    case NodeKind::avg_pool: return backward_avg_pool(plan, node, dy, result);
    case NodeKind::resample: return backward_resample(plan, node, dy, result);
    case NodeKind::add: return backward_add(plan, node, dy, result);
    case NodeKind::multiply: return backward_multiply(plan, node, dy, result);
    case NodeKind::concat: return backward_concat(plan, node, dy, result);
    case NodeKind::slice: return backward_slice(plan, node, dy, result);
    case NodeKind::channel_shuffle: return backward_channel_shuffle(plan, node, dy, result);
    case NodeKind::activation: return backward_activation(plan, node, dy, result);
    case NodeKind::prelu: return backward_prelu(plan, node, dy, result);
    case NodeKind::reshape: return backward_reshape(plan, node, dy, result);
    case NodeKind::softmax: return backward_softmax(plan, node, dy, result);
    case NodeKind::dropout: return backward_dropout(plan, node, dy, result);
    case NodeKind::drop_channels: return backward_drop_channels(plan, node, dy, result);
    case NodeKind::norm:  // handled above
    case NodeKind::relu: return plan.gradients.give(node.inputs[0], dy.value, dy.owned);
  }
}

// What the first nodes read: images, or the output of the stage before this one.
void set_input(Planner& plan, const Model& model) {
  if (plan.options.input) {
    plan.images = plan.new_value(*plan.options.input);
    plan.input = {plan.images.where, plan.images.desc};
  } else {
    const Shape input = model.input().prepended(plan.options.batch);
    plan.images = {{Space::input, 0}, {input, DType::f32, plan.context.plain_layout(input, DType::f32)}};
  }
}

// Logits and loss, or the output for the next stage.
void end_forward(Planner& plan) {
  const PlanValue& output = plan.results.back().y;
  if (!plan.options.last) {
    plan.output = plan.border(output, plan.steps_so_far);  // valid until the first step of backward has run
    return;
  }
  kernels::TensorDesc plain = plan.any_full(output.desc.shape);
  plain.layout = plan.context.plain_layout(plain.shape, plain.type);
  const PlanValue logits = plan.as(plan.forward, "logits", output, plain);
  plan.logits = logits.where;
  add_loss(plan, logits);
}

PlanParts build(const Model& model, kernels::Context& context, const PlanOptions& options, const ParameterTable* table,
                const NormTable& norms) {
  Planner plan(options, context, table, norms);
  plan.parameter_layouts.resize(model.parameters().size());
  for (std::size_t i = 0; i < plan.parameter_layouts.size(); ++i)
    plan.parameter_layouts[i] = context.plain_layout(model.parameters()[i].shape, context.compute_type());
  plan.nodes = fuse(model, options.dropout && options.training);
  const std::vector<Node>& nodes = plan.nodes;
  plan.neighbours = norm_neighbours(nodes, options.norm == BatchNormMode::sync);
  set_input(plan, model);
  plan.results.resize(nodes.size());
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    NodeResult& result = plan.results[i];
    result.needs_gradient = plan.trains(nodes[i]);
    for (const int from : nodes[i].inputs) result.needs_gradient |= plan.needs_gradient(from);
    forward_node(plan, nodes[i], result);
  }
  end_forward(plan);
  if (options.training) {
    plan.gradients.begin(model.parameters().size());
    for (std::size_t i = nodes.size(); i-- > 0;)
      if (plan.results[i].needs_gradient)
        backward_node(plan, nodes[i], plan.results[i], std::move(plan.gradients.summands(static_cast<int>(i))));
    plan.gradients.end();
    update_running_statistics(plan);
  }
  plan.place_buffers();
  return std::move(static_cast<PlanParts&>(plan));
}

}  // namespace

Plan::Plan(const Model& model, kernels::Context& context, const PlanOptions& options, const ParameterTable* table,
           const NormTable& norms) {
  if (options.batch < 1) throw Error(ErrorCode::usage, "a plan needs at least one row");
  if (options.last && model.output().rank() != 1)
    throw Error(ErrorCode::usage, "model '" + model.name() + "' ends in " + to_string(model.output()) +
                                      "; its output must be one row of class scores: flatten it");
  parts_ = build(model, context, options, table, norms);
  for (auto* const steps : {&parts_.fold, &parts_.forward, &parts_.loss, &parts_.backward, &parts_.weight_gradients,
                            &parts_.running_statistics})
    for (PlanStep& step : *steps) step.bytes = static_cast<std::int64_t>(work_of(step).bytes);
}

namespace {

std::string place_name(const Ref& ref) {
  static constexpr const char* kNames[] = {"-",       "act",   "val",    "low",     "folded", "grad",    "buf",
                                           "moments", "input", "labels", "samples", "state",  "results", "scale"};
  static_assert(std::size(kNames) == static_cast<std::size_t>(Space::count));
  const char* name = kNames[static_cast<std::size_t>(ref.space)];
  return ref.space > Space::none && ref.space < Space::input ? fmt::format("{}+{:x}", name, ref.offset) : name;
}

using KernelCounts = std::map<std::string, int>;

// " | 2 kernels: batch_norm_moments join_moments"
std::string kernels_text(const std::vector<std::string>& kernels, KernelCounts& counts) {
  std::string text;
  for (const std::string& name : kernels) {
    text += " " + name;
    ++counts[name];
  }
  return kernels.empty() ? "" : fmt::format(" | {} kernel{}:{}", kernels.size(), kernels.size() == 1 ? "" : "s", text);
}

void describe_steps(std::string& text, const char* title, const std::vector<PlanStep>& steps,
                    const Plan::KernelsOf& kernels_of, KernelCounts& counts) {
  if (steps.empty()) return;
  text += fmt::format("  {}\n", title);
  for (const PlanStep& step : steps) {
    std::string args;
    for (int i = 0; i < step.arg_count; ++i)
      args += (i ? " " : "") + place_name(step.args[static_cast<std::size_t>(i)]);
    std::string layouts;
    for (const kernels::TensorDesc& tensor : step.op->tensors()) layouts += " " + tensor.layout.name;
    text += fmt::format("    {:<40} {:<24} [{}]{} | {:.2f} MiB{}\n", step.name, step.op->implementation(), args,
                        layouts, static_cast<double>(step.bytes) / (1 << 20),
                        kernels_of ? kernels_text(kernels_of(step), counts) : std::string());
  }
}

}  // namespace

std::vector<AllGather> forward_all_gathers(const NormTable& norms, int shards) {
  const auto n = static_cast<std::size_t>(shards);
  std::vector<AllGather> all_gathers;
  for (int i = 0; i < norms.count(); ++i)
    all_gathers.push_back({norms.norm(i).moments * n, norms.norm(i).moments_bytes()});
  return all_gathers;
}

std::string Plan::describe(const KernelsOf& kernels_of) const {
  std::string text =
      fmt::format("plan for {} rows, {}: {} steps, activations {:.1f} MiB, workspace {:.1f} MiB, {} reorders\n",
                  parts_.options.batch, parts_.options.training ? "training" : "evaluation",
                  parts_.fold.size() + parts_.forward.size() + parts_.loss.size() + parts_.backward.size() +
                      parts_.weight_gradients.size(),
                  static_cast<double>(parts_.arena_bytes) / (1 << 20),
                  static_cast<double>(parts_.workspace_bytes) / (1 << 20), parts_.reorders);
  KernelCounts counts;
  describe_steps(text, "folded weights, once per update", parts_.fold, kernels_of, counts);
  describe_steps(text, "forward", parts_.forward, kernels_of, counts);
  describe_steps(text, "loss", parts_.loss, kernels_of, counts);
  describe_steps(text, "backward", parts_.backward, kernels_of, counts);
  describe_steps(text, "weight gradients", parts_.weight_gradients, kernels_of, counts);
  describe_steps(text, "running statistics", parts_.running_statistics, kernels_of, counts);
  if (counts.empty()) return text;
  int all = 0;
  for (const auto& [name, count] : counts) all += count;
  text += fmt::format("  {} kernels\n", all);
  for (const auto& [name, count] : counts) text += fmt::format("    {:>4} {}\n", count, name);
  return text;
}

}  // namespace dp::engine
