// Transposed convolutions, by the ops of convolutions: a forward pass is the data gradient of the convolution from the
// layer's output to its input, whose weights they share.
#include "engine/layers/layers.h"

namespace dp::engine {

using namespace kernels;

namespace {

void transposed_weight_gradients(Planner& plan, const Node& node, const PlanValue& dy, const NodeResult& result) {
  PlanSteps& steps = plan.gradients.steps();
  const std::string name = node.name + " backward_weights";
  auto op = plan.make(Conv2dBackwardWeights{dy.desc, plan.activation_desc(result.x.desc),
                                            plan.any_full(weight_shape(node)), node.window, /*bias=*/false});
  const TensorDesc wanted_dy = op.tensors()[0], wanted_x = op.tensors()[1], produced = op.tensors()[2];
  const PlanValue grad = plan.as(steps, name, dy, wanted_dy), from = plan.as(steps, name, result.x, wanted_x);
  const PlanValue dw = plan.gradients.target(node.weight, produced);
  plan.add(steps, node.name, "backward_weights", std::move(op),
           {.x = grad.where, .dy = from.where, .dw = dw.where, .db = {}});
  plan.gradients.store(node.name + " weight", node.weight, dw);
  if (node.bias < 0) return;
  const PlanValue db = plan.gradients.target(node.bias, plan.channels_desc(node.output[0]));
  plan.add(steps, node.name, "backward_bias", plan.make(ChannelwiseBackward{dy.desc, node.output[0], Channelwise::add}),
           {.dy = dy.where, .x = {}, .w = {}, .dx = {}, .dw = db.where});
  plan.gradients.store(node.name + " bias", node.bias, db);
}

}  // namespace

void forward_conv_transpose(Planner& plan, const Node& node, const PlanValue& x, NodeResult& result) {
  auto op = plan.make(Conv2dBackwardData{plan.activation_desc(x.desc), plan.any(weight_shape(node)),
                                         plan.batched(node.output), node.window});
  const TensorDesc wanted_x = op.tensors()[0], wanted_w = op.tensors()[1], out = op.tensors()[2];
  const PlanValue from = plan.as(plan.forward, node.name, x, wanted_x);
  const PlanValue weight = plan.parameter(plan.forward, node.name + " weight", node.weight, wanted_w);
  result.x = plan.mixed() && x.desc.type != from.desc.type ? from : x;
  result.y = plan.new_value(out);
  plan.add(plan.forward, node.name, "", std::move(op), {.dy = from.where, .w = weight.where, .dx = result.y.where});
  if (node.bias >= 0)
    plan.add(plan.forward, node.name, "bias", plan.make(ChannelwiseForward{out, node.output[0], Channelwise::add}),
             {.x = result.y.where, .w = plan.parameter_place(node.bias), .y = result.y.where});
}

void backward_conv_transpose(Planner& plan, const Node& node, const NodeGradient& gradient, const NodeResult& result) {
  const PlanValue& dy = gradient.value;
  plan.gradients.of_weights(node, [&plan, &node, dy, &result] { transposed_weight_gradients(plan, node, dy, result); });
  if (plan.needs_gradient(node.inputs[0]))
    add_data_gradient(plan, node, dy,
                      Conv2dForward{plan.any(dy.desc.shape), plan.any(weight_shape(node)),
                                    plan.activation_desc(result.x.desc), node.window, /*bias=*/false},
                      [](Ref grad, Ref weight, Ref dx) -> Conv2dForward::Args<Ref> {
                        return {.x = grad, .w = weight, .b = {}, .y = dx};
                      });
  if (!plan.options.split_backward) plan.gradients.finished(node.weight, node.bias);
}

}  // namespace dp::engine
