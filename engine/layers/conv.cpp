// Convolutions, with what their ops compute of the layers before and after them: parts of batch normalisations
// (docs/decisions/0025), pools and ReLU masks (docs/decisions/0034).
#include "engine/layers/layers.h"

namespace dp::engine {

using namespace kernels;

bool takes_moments(const PlanDraft& plan, const Node& conv) {
  return plan.options.training && plan.context.norm_fusion() != NormFusion::never &&
         plan.neighbours_of(conv).normalizes >= 0;
}

namespace {

// Total seconds; empty if any of them is unknown.
std::optional<double> seconds_of(Context& context, std::initializer_list<OpDesc> ops) {
  double sum = 0;
  for (const OpDesc& op : ops) {
    const std::optional<double> seconds = context.seconds_of(op);
    if (!seconds) return {};
    sum += *seconds;
  }
  return sum;
}

// The normalisation that the convolution computes itself, or null.
const Node* deferred_norm(const PlanDraft& plan, const Node& conv) {
  const int from = conv.inputs[0];
  return from >= 0 && plan.results[index(from)].deferred ? &plan.nodes[index(from)] : nullptr;
}

// Whether the convolution also computes the gradient sums of the normalisation before it.
bool sums_gradient(const PlanDraft& plan, const Node& conv) {
  const int from = conv.inputs[0];
  if (from < 0 || !plan.needs_gradient(from) || plan.context.norm_fusion() == NormFusion::never) return false;
  const int gradient = plan.neighbours[index(from)].gradient;
  return gradient >= 0 && &plan.nodes[index(gradient)] == &conv;
}

NormConv2dForward fused_forward(const PlanDraft& plan, const Node& conv, const TensorDesc& x, bool norm) {
  const Shape weights = weight_shape(conv);
  const bool moments = takes_moments(plan, conv);
  const auto eps = moments
                       ? plan.eps_of_shard(plan.norms.norm(plan.nodes[index(plan.neighbours_of(conv).normalizes)].norm))
                       : std::nullopt;
  return {x, plan.any(weights), plan.batched(conv.output), conv.window, norm, moments, eps};
}

// Whether the convolution is faster if it normalises its input itself. Compares all of its ops in a step.
bool is_faster(PlanDraft& plan, const Node& conv, const NormConv2dForward& with, const NormConv2dForward& without) {
  const TensorDesc& x = with.x;
  const BatchNormForward forward{x, true, false};
  const Conv2dForward plain{x, with.w, with.y, conv.window, false, false};
  const OpDesc read = without.moments ? OpDesc(without) : OpDesc(plain);
  if (!plan.options.training) {
    const auto fused = seconds_of(plan.context, {with}), apart = seconds_of(plan.context, {forward, read});
    return fused && apart && *fused < *apart;
  }
  const TensorDesc dy = plan.any(plan.batched(conv.output).shape), w = with.w, dw = plan.any_full(w.shape);
  const auto fused = seconds_of(plan.context, {with, NormConv2dBackwardWeights{x, dy, dw, conv.window},
                                               NormConv2dBackwardData{dy, w, x, conv.window, true, false, true}});
  const auto apart = seconds_of(plan.context, {forward, read, Conv2dBackwardWeights{x, dy, dw, conv.window, false},
                                               NormConv2dBackwardData{dy, w, x, conv.window, true, false, false}});
  return fused && apart && *fused < *apart;
}

// Adds the convolution together with parts of the normalisations beside it. Returns false if it has none to take over.
bool forward_with_norms(Planner& plan, const Node& node, const PlanValue& x, NodeResult& result) {
  const Node* const norm = deferred_norm(plan, node);
  const bool moments = takes_moments(plan, node);
  if (norm == nullptr && !moments) return false;
  PlanSteps& steps = plan.forward;
  const NodeResult* const before = norm ? &plan.results[index(node.inputs[0])] : nullptr;
  const TensorDesc in = norm ? before->x.desc : plan.activation_desc(x.desc);
  auto op = plan.make(fused_forward(plan, node, in, norm != nullptr));
  const TensorDesc wanted_x = op.tensors()[0], wanted_w = op.tensors()[1], out = op.tensors()[2];
  const PlanValue from = norm ? before->x : plan.as(steps, node.name, x, wanted_x);
  const PlanValue weight = plan.parameter(plan.forward, node.name + " weight", node.weight, wanted_w);
  result.x = norm || (plan.mixed() && x.desc.type != from.desc.type) ? from : x;
  result.y = plan.new_value(out);
  Ref saved{}, scale{}, bias{}, statistics{}, stats{};
  if (norm)
    saved = before->saved.where, scale = plan.parameter_place(norm->weight), bias = plan.parameter_place(norm->bias);
  if (moments) {
    const std::size_t behind = index(plan.neighbours_of(node).normalizes);
    const Norm& own = plan.norms.norm(plan.nodes[behind].norm);
    statistics = plan.statistics.own_moments(own);
    if (plan.eps_of_shard(own)) stats = (plan.results[behind].saved = plan.new_doubles(1 + 2 * own.channels)).where;
  }
  plan.add(steps, node.name, "", std::move(op),
           {.x = from.where,
            .stats = saved,
            .weight = scale,
            .bias = bias,
            .w = weight.where,
            .y = result.y.where,
            .moments = statistics,
            .y_stats = stats});
  steps.back().ends_segment = moments && plan.options.norm == BatchNormMode::sync;
  return true;
}

// The data gradient with the gradient sums of the normalisation before the convolution.
void backward_data_with_norm(Planner& plan, const Node& node, const PlanValue& dy) {
  PlanSteps& steps = plan.backward;
  const int from = node.inputs[0];
  const Node& before = plan.nodes[index(from)];
  NodeResult& result = plan.results[index(from)];
  const Norm& norm = plan.norms.norm(before.norm);
  const std::string name = node.name + " backward_data";
  std::vector<NodeGradient>& others = plan.gradients.summands(from);

  const TensorDesc w = plan.any(weight_shape(node));
  const bool adds = !others.empty();
  auto op = plan.make(NormConv2dBackwardData{plan.any(dy.desc.shape), w, result.x.desc, node.window, before.relu, adds,
                                             result.deferred});
  const TensorDesc wanted_dy = op.tensors()[0], wanted_w = op.tensors()[1];
  const PlanValue grad = plan.as(steps, name, dy, wanted_dy);
  const PlanValue weight = plan.gradients.weight_of(node, wanted_w);
  PlanValue second;
  if (adds) second = plan.as(steps, name, others.front().value, result.x.desc);
  const TensorDesc channels = plan.channels_desc(norm.channels);
  const PlanValue dw = plan.gradients.target(before.weight, channels),
                  db = plan.gradients.target(before.bias, channels);
  const PlanValue dz = plan.new_value(result.x.desc);
  const bool renormalizes = result.deferred;
  plan.add(steps, node.name, "backward_data", std::move(op),
           {.dy = grad.where,
            .w = weight.where,
            .dy2 = second.where,
            .x = result.x.where,
            .y = before.relu && !renormalizes ? result.y.where : Ref{},
            .stats = result.saved.where,
            .weight = renormalizes ? plan.parameter_place(before.weight) : Ref{},
            .bias = renormalizes ? plan.parameter_place(before.bias) : Ref{},
            .sums = plan.statistics.own_sums(norm),
            .dweight = dw.where,
            .dbias = db.where,
            .dz = dz.where});
  plan.gradients.end_sums(norm);
  if (!plan.options.split_backward) plan.gradients.finished(node.weight, node.bias);
  plan.gradients.store(before.name + " weight", before.weight, dw);
  plan.gradients.store(before.name + " bias", before.bias, db);
  others.assign(1, {dz, true});
  result.summed = true;
}

// Adds one op for the convolution and the pool after it. Returns false if they cannot be fused.
bool forward_with_pool(Planner& plan, const Node& node, const PlanValue& x, NodeResult& result) {
  const int reader = plan.sole_reader(node);
  // The convolution's result is not stored, but the gradient of its own ReLU would read it.
  if (node.relu || reader < 0 || plan.nodes[index(reader)].kind != NodeKind::max_pool) return false;
  const Node& pool = plan.nodes[index(reader)];
  const bool training = plan.options.training;
  const TensorDesc in = plan.activation_desc(x.desc);
  const TensorDesc w = plan.any(weight_shape(node));
  const TensorDesc y = plan.batched(node.output);
  const Conv2dPoolForward desc{{in, w, y, node.window, node.bias >= 0, node.relu},
                               {y, plan.batched(pool.output), pool.window, pool.relu, training, pool.dropout}};
  if (!plan.context.fuses(desc)) return false;
  PlanSteps& steps = plan.forward;
  auto op = plan.make(desc);
  const std::vector<TensorDesc> tensors = op.tensors();
  const PlanValue from = plan.as(steps, node.name, x, tensors[0]);
  const PlanValue weight = plan.parameter(plan.forward, node.name + " weight", node.weight, tensors[1]);
  result.x = plan.mixed() && x.desc.type != from.desc.type ? from : x;
  result.y = {{}, tensors[2]};
  NodeResult& pooled = plan.results[index(reader)];
  pooled.joined = true;
  pooled.x = result.y;
  pooled.y = plan.new_value(tensors[3]);
  if (training) pooled.saved = plan.new_mask(pooled.y);
  const bool drops = pool.dropout.has_value();
  plan.add(steps, node.name + "+" + pool.name, "", std::move(op),
           {.x = from.where,
            .w = weight.where,
            .b = plan.parameter_place(node.bias),
            .y = pooled.y.where,
            .mask = pooled.saved.where,
            .samples = {drops ? Space::samples : Space::none},
            .inputs = {drops ? Space::step_inputs : Space::none}});
  return true;
}

// Adds one op for the data gradient and the ReLU before the convolution. Returns false if they cannot be fused.
bool backward_with_mask(Planner& plan, const Node& node, const PlanValue& dy, const NodeResult& result) {
  const int before = masked_input(plan, node);
  if (before < 0 || result.x.where.offset != plan.results[index(before)].y.where.offset) return false;
  const TensorDesc w = plan.any(weight_shape(node));
  const Conv2dReluBackwardData desc{{plan.any(dy.desc.shape), w, result.x.desc, node.window}};
  if (plan.results[index(before)].scale != 1 || !plan.context.fuses(desc)) return false;
  add_data_gradient(plan, node, dy, desc, [&](Ref grad, Ref weight, Ref dx) -> Conv2dReluBackwardData::Args<Ref> {
    return {.dy = grad, .w = weight, .x = result.x.where, .dx = dx};
  });
  plan.results[index(before)].masked = true;
  return true;
}

void weight_gradients(Planner& plan, const Node& node, const PlanValue& dy, const NodeResult& result) {
  const TensorDesc x = plan.activation_desc(result.x.desc), w = plan.any_full(weight_shape(node));
  if (const Node* const norm = deferred_norm(plan, node))
    add_weight_gradients(plan, node, dy, result, NormConv2dBackwardWeights{x, dy.desc, w, node.window},
                         [&](Ref from, Ref grad, Ref dw, Ref) -> NormConv2dBackwardWeights::Args<Ref> {
                           return {.x = from,
                                   .stats = plan.results[index(node.inputs[0])].saved.where,
                                   .weight = plan.parameter_place(norm->weight),
                                   .bias = plan.parameter_place(norm->bias),
                                   .dy = grad,
                                   .dw = dw};
                         });
  else
    add_weight_gradients(plan, node, dy, result, Conv2dBackwardWeights{x, dy.desc, w, node.window, node.bias >= 0},
                         [](Ref from, Ref grad, Ref dw, Ref db) -> Conv2dBackwardWeights::Args<Ref> {
                           return {.x = from, .dy = grad, .dw = dw, .db = db};
                         });
}

}  // namespace

bool defers(PlanDraft& plan, const Node& norm, const TensorDesc& x) {
  const NormFusion mode = plan.context.norm_fusion();
  const int reader = plan.neighbours_of(norm).reader;
  if (mode == NormFusion::never || reader < 0) return false;
  const Node& conv = plan.nodes[index(reader)];
  if (plan.folded_norm(conv) != nullptr) return false;  // it becomes a plain convolution, which reads a stored tensor
  const NormConv2dForward with = fused_forward(plan, conv, x, true), without = fused_forward(plan, conv, x, false);
  if (mode == NormFusion::measured && !is_faster(plan, conv, with, without)) return false;
  return plan.context.make_op(with)->tensors()[0].layout == x.layout;
}

void forward_conv(Planner& plan, const Node& node, const PlanValue& x, NodeResult& result) {
  if (const Node* const norm = plan.folded_norm(node)) return forward_folded(plan, node, *norm, x, result);
  if (forward_with_norms(plan, node, x, result) || forward_with_pool(plan, node, x, result)) return;
  add_forward(plan, node, x, result,
              Conv2dForward{plan.activation_desc(x.desc), plan.any(weight_shape(node)), plan.batched(node.output),
                            node.window, node.bias >= 0, node.relu, plan.options.training});
}

void backward_conv(Planner& plan, const Node& node, const NodeGradient& gradient, const NodeResult& result) {
  const PlanValue& dy = gradient.value;
  plan.gradients.of_weights(node, [&plan, &node, dy, &result] { weight_gradients(plan, node, dy, result); });
  if (sums_gradient(plan, node)) return backward_data_with_norm(plan, node, dy);
  if (!backward_with_mask(plan, node, dy, result) && plan.needs_gradient(node.inputs[0]))
    add_data_gradient(plan, node, dy,
                      Conv2dBackwardData{plan.any(dy.desc.shape), plan.any(weight_shape(node)),
                                         plan.activation_desc(result.x.desc), node.window});
  if (!plan.options.split_backward) plan.gradients.finished(node.weight, node.bias);
}

}  // namespace dp::engine
