// Layers that multiply by a factor for each channel or pixel, join tensors along their channels, or take some channels;
// PReLU and softmax.
#include "engine/layers/layers.h"

namespace dp::engine {

using namespace kernels;

namespace {

// The descriptor with which a layer reads `value`. `per_sample` is the shape in the model, which may be flattened.
TensorDesc read_as(const Planner& plan, const PlanValue& value, const Shape& per_sample) {
  const TensorDesc flat = plan.batched(per_sample);
  return value.desc.shape == flat.shape ? plan.computed(value.desc) : flat;
}

// MultiplyForward reads factors of x's shape in x's layout. On images of one pixel the factors have this shape.
PlanValue factors_for(Planner& plan, PlanSteps& steps, const Node& node, const PlanValue& factors,
                      const TensorDesc& x) {
  return factors.desc.shape == x.shape ? plan.as(steps, node.name, factors, x) : factors;
}

// Sets x and y of `result`, in one layout. Rows of features are row-major.
void read_operands(Planner& plan, const Node& node, const PlanValue& x, NodeResult& result) {
  TensorDesc wanted = read_as(plan, x, node.input);
  if (wanted.layout.any()) wanted.layout = plan.context.plain_layout(wanted.shape, wanted.type);
  result.x = plan.as(plan.forward, node.name, x, wanted);
  result.y = plan.new_value(result.x.desc);
}

}  // namespace

void forward_multiply(Planner& plan, const Node& node, const PlanValue& x, NodeResult& result) {
  const PlanValue s = plan.result_of(node.inputs[1]);
  auto op = plan.make(MultiplyForward{read_as(plan, x, node.parts[0]), plan.batched(node.parts[1])});
  result.x = plan.as(plan.forward, node.name, x, op.tensors()[0]);
  result.saved = plan.as(plan.forward, node.name, s, op.tensors()[1]);
  result.y = plan.new_value(result.x.desc);
  plan.add(plan.forward, node.name, "", std::move(op),
           {.x = result.x.where, .s = result.saved.where, .y = result.y.where});
}

void backward_multiply(Planner& plan, const Node& node, const NodeGradient& dy, const NodeResult& result) {
  const int x = node.inputs[0], s = node.inputs[1];
  const PlanValue dx = plan.needs_gradient(x) ? plan.gradients.in_place_or_new(dy) : PlanValue{};
  const PlanValue ds = plan.needs_gradient(s) ? plan.new_value(result.saved.desc) : PlanValue{};
  plan.add(plan.backward, node.name, "backward", plan.make(MultiplyBackward{result.x.desc, result.saved.desc}),
           {.dy = dy.value.where, .x = result.x.where, .s = result.saved.where, .dx = dx.where, .ds = ds.where});
  plan.gradients.give(x, dx, true);
  plan.gradients.give(s, ds, true);
}

void forward_drop_channels(Planner& plan, const Node& node, const PlanValue& x, NodeResult& result) {
  auto factors = plan.make(DropFactors{plan.batched({node.output[0], 1, 1}), *node.dropout, node.whole_samples});
  result.saved = plan.new_value(factors.tensors()[0]);
  plan.add(plan.forward, node.name, "factors", std::move(factors),
           {.samples = {Space::samples}, .inputs = {Space::step_inputs}, .y = result.saved.where});
  result.x = plan.as(plan.forward, node.name, x, plan.computed(x.desc));
  result.y = plan.new_value(result.x.desc);
  const PlanValue factor = factors_for(plan, plan.forward, node, result.saved, result.x.desc);
  plan.add(plan.forward, node.name, "", plan.make(MultiplyForward{result.x.desc, factor.desc}),
           {.x = result.x.where, .s = factor.where, .y = result.y.where});
}

void backward_drop_channels(Planner& plan, const Node& node, const NodeGradient& dy, const NodeResult& result) {
  const PlanValue to = plan.gradients.in_place_or_new(dy);
  const PlanValue factor = factors_for(plan, plan.backward, node, result.saved, dy.value.desc);
  plan.add(plan.backward, node.name, "backward", plan.make(MultiplyForward{dy.value.desc, factor.desc}),
           {.x = dy.value.where, .s = factor.where, .y = to.where});
  plan.gradients.give(node.inputs[0], to, true);
}

// The first input chooses the layout of the result. One step for each input copies it to its place.
void forward_concat(Planner& plan, const Node& node, const PlanValue&, NodeResult& result) {
  std::int64_t to = 0;
  for (std::size_t i = 0; i < node.inputs.size(); ++i) {
    const PlanValue& part = plan.result_of(node.inputs[i]);
    const std::int64_t channels = node.parts[i][0];
    auto op = plan.make(CopyChannels{read_as(plan, part, node.parts[i]),
                                     i == 0 ? plan.batched(node.output) : result.y.desc, 0, to, channels});
    const PlanValue x = plan.as(plan.forward, node.name, part, op.tensors()[0]);
    if (i == 0) result.x = x, result.y = plan.new_value(op.tensors()[1]);
    plan.add(plan.forward, node.name, i == 0 ? "" : "part", std::move(op), {.x = x.where, .y = result.y.where});
    to += channels;
  }
}

void backward_concat(Planner& plan, const Node& node, const NodeGradient& dy, const NodeResult&) {
  std::int64_t from = 0;
  for (std::size_t i = 0; i < node.inputs.size(); ++i) {
    const int input = node.inputs[i];
    const std::int64_t channels = node.parts[i][0];
    if (plan.needs_gradient(input)) {
      auto op = plan.make(
          CopyChannels{dy.value.desc, read_as(plan, plan.result_of(input), node.parts[i]), from, 0, channels});
      const PlanValue dx = plan.new_value(op.tensors()[1]);
      plan.add(plan.backward, node.name, "backward", std::move(op), {.x = dy.value.where, .y = dx.where});
      plan.gradients.give(input, dx, true);
    }
    from += channels;
  }
}

void forward_slice(Planner& plan, const Node& node, const PlanValue& x, NodeResult& result) {
  auto op =
      plan.make(CopyChannels{read_as(plan, x, node.input), plan.batched(node.output), node.first, 0, node.output[0]});
  result.x = plan.as(plan.forward, node.name, x, op.tensors()[0]);
  result.y = plan.new_value(op.tensors()[1]);
  plan.add(plan.forward, node.name, "", std::move(op), {.x = result.x.where, .y = result.y.where});
}

void backward_slice(Planner& plan, const Node& node, const NodeGradient& dy, const NodeResult& result) {
  const PlanValue dx = plan.new_value(result.x.desc);
  plan.add(plan.backward, node.name, "backward zeros", plan.make(Fill{dx.desc.layout.bytes}), {.dst = dx.where});
  plan.add(plan.backward, node.name, "backward",
           plan.make(CopyChannels{dy.value.desc, dx.desc, 0, node.first, node.output[0]}),
           {.x = dy.value.where, .y = dx.where});
  plan.gradients.give(node.inputs[0], dx, true);
}

// One step for each group copies its channels to every `groups`-th channel of the result.
void forward_channel_shuffle(Planner& plan, const Node& node, const PlanValue& x, NodeResult& result) {
  const std::int64_t each = node.output[0] / node.groups;
  for (std::int64_t group = 0; group < node.groups; ++group) {
    const TensorDesc y = group == 0 ? plan.batched(node.output) : result.y.desc;
    auto op = plan.make(CopyChannels{plan.activation_desc(x.desc), y, group * each, group, each, 1, node.groups});
    const PlanValue from = plan.as(plan.forward, node.name, x, op.tensors()[0]);
    if (group == 0) result.x = from, result.y = plan.new_value(op.tensors()[1]);
    plan.add(plan.forward, node.name, group == 0 ? "" : "part", std::move(op), {.x = from.where, .y = result.y.where});
  }
}

void backward_channel_shuffle(Planner& plan, const Node& node, const NodeGradient& dy, const NodeResult& result) {
  const std::int64_t each = node.output[0] / node.groups;
  const PlanValue dx = plan.new_value(result.x.desc);
  for (std::int64_t group = 0; group < node.groups; ++group)
    plan.add(plan.backward, node.name, "backward",
             plan.make(CopyChannels{dy.value.desc, dx.desc, group, group * each, each, node.groups, 1}),
             {.x = dy.value.where, .y = dx.where});
  plan.gradients.give(node.inputs[0], dx, true);
}

void forward_prelu(Planner& plan, const Node& node, const PlanValue& x, NodeResult& result) {
  read_operands(plan, node, x, result);
  plan.add(plan.forward, node.name, "", plan.make(ChannelwiseForward{result.x.desc, node.numbers, Channelwise::prelu}),
           {.x = result.x.where, .w = plan.parameter_place(node.weight), .y = result.y.where});
}

void backward_prelu(Planner& plan, const Node& node, const NodeGradient& dy, const NodeResult& result) {
  const PlanValue dx = plan.gradients.in_place_or_new(dy);
  const PlanValue dw = plan.gradients.target(node.weight, plan.channels_desc(node.numbers));
  plan.add(plan.backward, node.name, "backward",
           plan.make(ChannelwiseBackward{dy.value.desc, node.numbers, Channelwise::prelu}),
           {.dy = dy.value.where,
            .x = result.x.where,
            .w = plan.parameter_place(node.weight),
            .dx = dx.where,
            .dw = dw.where});
  plan.gradients.store(node.name + " weight", node.weight, dw);
  plan.gradients.finished(node.weight, -1);
  plan.gradients.give(node.inputs[0], dx, true);
}

// Row-major tensors of one size have equal memory, so that nothing is computed: as() reorders other layouts.
void forward_reshape(Planner& plan, const Node& node, const PlanValue& x, NodeResult& result) {
  const Shape to = node.output.prepended(plan.options.batch);
  result.x = x;
  result.y = plan.as(plan.forward, node.name, x, {to, x.desc.type, plan.context.plain_layout(to, x.desc.type)});
}

void backward_reshape(Planner& plan, const Node& node, const NodeGradient& dy, const NodeResult& result) {
  plan.gradients.give(node.inputs[0], plan.as(plan.backward, node.name + " backward", dy.value, result.x.desc),
                      dy.owned);
}

void forward_softmax(Planner& plan, const Node& node, const PlanValue& x, NodeResult& result) {
  read_operands(plan, node, x, result);
  plan.add(plan.forward, node.name, "", plan.make(SoftmaxForward{result.x.desc}),
           {.x = result.x.where, .y = result.y.where});
}

void backward_softmax(Planner& plan, const Node& node, const NodeGradient& dy, const NodeResult& result) {
  const PlanValue to = plan.gradients.in_place_or_new(dy);
  plan.add(plan.backward, node.name, "backward", plan.make(SoftmaxBackward{dy.value.desc}),
           {.dy = dy.value.where, .y = result.y.where, .dx = to.where});
  plan.gradients.give(node.inputs[0], to, true);
}

}  // namespace dp::engine
