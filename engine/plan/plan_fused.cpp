#include "engine/plan/plan_fused.h"

namespace dp::engine {

using namespace kernels;

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

}  // namespace

bool FusedNorms::takes_moments(const Node& conv) const {
  return plan_.options.training && plan_.context.norm_fusion() != NormFusion::never &&
         plan_.neighbours_of(conv).normalizes >= 0;
}

const Node* FusedNorms::deferred_norm(const Node& conv) const {
  const int from = conv.inputs[0];
  return from >= 0 && plan_.results[index(from)].deferred ? &plan_.nodes[index(from)] : nullptr;
}

bool FusedNorms::sums_gradient(const Node& conv) const {
  const int from = conv.inputs[0];
  if (from < 0 || plan_.context.norm_fusion() == NormFusion::never) return false;
  const int gradient = plan_.neighbours[index(from)].gradient;
  return gradient >= 0 && &plan_.nodes[index(gradient)] == &conv;
}

NormConv2dForward FusedNorms::forward_desc(const Node& conv, const TensorDesc& x, bool norm) const {
  const Shape weights = weight_shape(conv);
  const bool moments = takes_moments(conv);
  const auto eps =
      moments ? plan_.eps_of_part(plan_.norms.norm(plan_.nodes[index(plan_.neighbours_of(conv).normalizes)].norm))
              : std::nullopt;
  return {x, plan_.any(weights), plan_.batched(conv.output), conv.window, norm, moments, eps};
}

bool FusedNorms::defers(const Node& norm, const TensorDesc& x) {
  const NormFusion mode = plan_.context.norm_fusion();
  const int reader = plan_.neighbours_of(norm).reader;
  if (mode == NormFusion::never || reader < 0) return false;
  const Node& conv = plan_.nodes[index(reader)];
  if (plan_.folded_norm(conv) != nullptr) return false;  // it becomes a plain convolution, which reads a stored tensor
  const NormConv2dForward with = forward_desc(conv, x, true), without = forward_desc(conv, x, false);
  if (mode == NormFusion::measured && !is_faster(conv, with, without)) return false;
  return plan_.context.make_op(with)->tensors()[0].layout == x.layout;
}

// Whether the convolution is faster if it normalises its input itself. Compares all of its ops in a step.
bool FusedNorms::is_faster(const Node& conv, const NormConv2dForward& with, const NormConv2dForward& without) {
  const TensorDesc& x = with.x;
  const BatchNormForward forward{x, true, false};
  const Conv2dForward plain{x, with.w, with.y, conv.window, false, false};
  const OpDesc read = without.moments ? OpDesc(without) : OpDesc(plain);
  if (!plan_.options.training) {
    const auto fused = seconds_of(plan_.context, {with}), apart = seconds_of(plan_.context, {forward, read});
    return fused && apart && *fused < *apart;
  }
  const TensorDesc dy = plan_.any(plan_.batched(conv.output).shape), w = with.w, dw = plan_.any_full(w.shape);
  const auto fused = seconds_of(plan_.context, {with, NormConv2dBackwardWeights{x, dy, dw, conv.window},
                                                NormConv2dBackwardData{dy, w, x, conv.window, true, false, true}});
  const auto apart = seconds_of(plan_.context, {forward, read, Conv2dBackwardWeights{x, dy, dw, conv.window, false},
                                                NormConv2dBackwardData{dy, w, x, conv.window, true, false, false}});
  return fused && apart && *fused < *apart;
}

bool FusedNorms::forward(const Node& node, const PlanValue& x, NodeResult& result) {
  const Node* const norm = deferred_norm(node);
  const bool moments = takes_moments(node);
  if (norm == nullptr && !moments) return false;
  PlanSteps& steps = plan_.forward;
  const NodeResult* const before = norm ? &plan_.results[index(node.inputs[0])] : nullptr;
  const TensorDesc in = norm ? before->x.desc : plan_.activation_desc(x.desc);
  auto op = plan_.make(forward_desc(node, in, norm != nullptr));
  const TensorDesc wanted_x = op.tensors()[0], wanted_w = op.tensors()[1], out = op.tensors()[2];
  const PlanValue from = norm ? before->x : plan_.as(steps, node.name, x, wanted_x);
  const PlanValue weight = plan_.parameter(plan_.forward, node.name + " weight", node.weight, wanted_w);
  result.x = norm || (plan_.mixed() && x.desc.type != from.desc.type) ? from : x;
  result.y = plan_.new_value(out);
  Ref saved{}, scale{}, bias{}, statistics{}, stats{};
  if (norm)
    saved = before->saved.where, scale = plan_.parameter_place(norm->weight), bias = plan_.parameter_place(norm->bias);
  if (moments) {
    const std::size_t behind = index(plan_.neighbours_of(node).normalizes);
    const Norm& own = plan_.norms.norm(plan_.nodes[behind].norm);
    statistics = plan_.own_moments(own);
    if (plan_.eps_of_part(own)) stats = (plan_.results[behind].saved = plan_.new_doubles(1 + 2 * own.channels)).where;
  }
  plan_.add(steps, node.name, "", std::move(op),
            {.x = from.where,
             .stats = saved,
             .weight = scale,
             .bias = bias,
             .w = weight.where,
             .y = result.y.where,
             .moments = statistics,
             .y_stats = stats});
  steps.back().gathers = moments && plan_.options.norm == BatchNormMode::sync;
  return true;
}

NormConv2dBackwardWeights FusedNorms::backward_weights(const Node& node, const TensorDesc& x,
                                                       const TensorDesc& dy) const {
  return {x, dy, plan_.any_full(weight_shape(node)), node.window};
}

void FusedNorms::backward_data(const Node& node, const PlanValue& dy) {
  PlanSteps& steps = plan_.backward;
  const int from = node.inputs[0];
  const Node& before = plan_.nodes[index(from)];
  NodeResult& result = plan_.results[index(from)];
  const Norm& norm = plan_.norms.norm(before.norm);
  const std::string name = node.name + " backward_data";
  std::vector<NodeGradient>& others = gradients_.summands(from);

  const TensorDesc w = plan_.any(weight_shape(node));
  const bool adds = !others.empty();
  auto op = plan_.make(NormConv2dBackwardData{plan_.any(dy.desc.shape), w, result.x.desc, node.window, before.relu,
                                              adds, result.deferred});
  const TensorDesc wanted_dy = op.tensors()[0], wanted_w = op.tensors()[1];
  const PlanValue grad = plan_.as(steps, name, dy, wanted_dy);
  const PlanValue weight = gradients_.weight_of(node, wanted_w);
  PlanValue second;
  if (adds) second = plan_.as(steps, name, others.front().value, result.x.desc);
  const TensorDesc channels = plan_.channels_desc(norm.channels);
  const PlanValue dw = gradients_.target(before.weight, channels), db = gradients_.target(before.bias, channels);
  const PlanValue dz = plan_.new_value(result.x.desc);
  const bool renormalizes = result.deferred;
  plan_.add(steps, node.name, "backward_data", std::move(op),
            {.dy = grad.where,
             .w = weight.where,
             .dy2 = second.where,
             .x = result.x.where,
             .y = before.relu && !renormalizes ? result.y.where : Ref{},
             .stats = result.saved.where,
             .weight = renormalizes ? plan_.parameter_place(before.weight) : Ref{},
             .bias = renormalizes ? plan_.parameter_place(before.bias) : Ref{},
             .sums = plan_.own_sums(norm),
             .dweight = dw.where,
             .dbias = db.where,
             .dz = dz.where});
  steps.back().gathers = plan_.options.norm == BatchNormMode::sync;
  if (!plan_.options.split_backward) gradients_.finished(node.weight, node.bias);
  gradients_.store(before.name + " weight", before.weight, dw);
  gradients_.store(before.name + " bias", before.bias, db);
  others.assign(1, {dz, true});
  result.summed = true;
}

}  // namespace dp::engine
