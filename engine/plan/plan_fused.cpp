// Steps in which a convolution performs parts of the adjacent batch normalisations (docs/decisions/0025).
#include "engine/plan/plan_builder.h"

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

bool PlanBuilder::takes_moments(const Node& conv) const {
  return plan_.options_.training && context_.norm_fusion() != NormFusion::never && neighbours_of(conv).normalizes >= 0;
}

const Node* PlanBuilder::deferred_norm(const Node& conv) const {
  const int from = conv.inputs[0];
  return from >= 0 && results_[index(from)].deferred ? &nodes_[index(from)] : nullptr;
}

bool PlanBuilder::sums_gradient(const Node& conv) const {
  const int from = conv.inputs[0];
  if (from < 0 || context_.norm_fusion() == NormFusion::never) return false;
  const int gradient = neighbours_[index(from)].gradient;
  return gradient >= 0 && &nodes_[index(gradient)] == &conv;
}

NormConv2dForward PlanBuilder::fused_forward(const Node& conv, const TensorDesc& x, bool norm) const {
  const Shape weights{conv.output[0], conv.input[0], conv.window.kernel, conv.window.kernel};
  const bool moments = takes_moments(conv);
  const auto eps =
      moments ? eps_of_part(norms_.norm(nodes_[index(neighbours_of(conv).normalizes)].norm)) : std::nullopt;
  return {x, any(weights), batched(conv.output), conv.window, norm, moments, eps};
}

bool PlanBuilder::defers(const Node& norm, const TensorDesc& x) {
  const NormFusion mode = context_.norm_fusion();
  const int reader = neighbours_of(norm).reader;
  if (mode == NormFusion::never || reader < 0) return false;
  const Node& conv = nodes_[index(reader)];
  if (folded_norm(conv) != nullptr) return false;  // it becomes a plain convolution, which reads a stored tensor
  const NormConv2dForward with = fused_forward(conv, x, true), without = fused_forward(conv, x, false);
  if (mode == NormFusion::measured && !is_faster(conv, with, without)) return false;
  return context_.make_op(with)->tensors()[0].layout == x.layout;
}

// Whether the convolution is faster if it normalises its input itself. Compares all of its ops in a step.
bool PlanBuilder::is_faster(const Node& conv, const NormConv2dForward& with, const NormConv2dForward& without) {
  const TensorDesc& x = with.x;
  const BatchNormForward forward{x, true, false};
  const Conv2dForward plain{x, with.w, with.y, conv.window, false, false};
  const OpDesc read = without.moments ? OpDesc(without) : OpDesc(plain);
  if (!plan_.options_.training) {
    const auto fused = seconds_of(context_, {with}), apart = seconds_of(context_, {forward, read});
    return fused && apart && *fused < *apart;
  }
  const TensorDesc dy = any(batched(conv.output).shape), w = with.w, dw = any_full(w.shape);
  const auto fused = seconds_of(context_, {with, NormConv2dBackwardWeights{x, dy, dw, conv.window},
                                           NormConv2dBackwardData{dy, w, x, conv.window, true, false, true}});
  const auto apart = seconds_of(context_, {forward, read, Conv2dBackwardWeights{x, dy, dw, conv.window, false},
                                           NormConv2dBackwardData{dy, w, x, conv.window, true, false, false}});
  return fused && apart && *fused < *apart;
}

bool PlanBuilder::forward_fused(const Node& node, const Value& x, Result& result) {
  const Node* const norm = deferred_norm(node);
  const bool moments = takes_moments(node);
  if (norm == nullptr && !moments) return false;
  Steps& steps = plan_.forward_;
  const Result* const before = norm ? &results_[index(node.inputs[0])] : nullptr;
  const TensorDesc in = norm ? before->x.desc : x.desc.type == context_.activation_type() ? x.desc : any(x.desc.shape);
  auto op = make(fused_forward(node, in, norm != nullptr));
  const TensorDesc wanted_x = op.tensors()[0], wanted_w = op.tensors()[1], out = op.tensors()[2];
  const Value from = norm ? before->x : as(steps, node.name, x, wanted_x);
  const Value weight = parameter(plan_.forward_, node.name + " weight", node.weight, wanted_w);
  result.x = norm || (mixed() && x.desc.type != from.desc.type) ? from : x;
  result.y = new_value(out);
  Ref saved{}, scale{}, bias{}, statistics{}, stats{};
  if (norm) saved = before->saved.where, scale = parameter_place(norm->weight), bias = parameter_place(norm->bias);
  if (moments) {
    const std::size_t behind = index(neighbours_of(node).normalizes);
    const Norm& own = norms_.norm(nodes_[behind].norm);
    statistics = own_moments(own);
    if (eps_of_part(own)) stats = (results_[behind].saved = new_doubles(1 + 2 * own.channels)).where;
  }
  add(steps, node.name, "", std::move(op),
      {.x = from.where,
       .stats = saved,
       .weight = scale,
       .bias = bias,
       .w = weight.where,
       .y = result.y.where,
       .moments = statistics,
       .y_stats = stats});
  steps.back().gathers = moments && plan_.options_.norm == BatchNormMode::sync;
  return true;
}

NormConv2dBackwardWeights PlanBuilder::fused_backward_weights(const Node& node, const TensorDesc& x,
                                                              const TensorDesc& dy) const {
  return {x, dy, any_full({node.output[0], node.input[0], node.window.kernel, node.window.kernel}), node.window};
}

void PlanBuilder::backward_data_and_sums(const Node& node, const Value& dy) {
  Steps& steps = plan_.backward_;
  const int from = node.inputs[0];
  const Node& before = nodes_[index(from)];
  Result& result = results_[index(from)];
  const Norm& norm = norms_.norm(before.norm);
  const std::string name = node.name + " backward_data";
  std::vector<Gradient>& others = gradients_[index(from)];

  const TensorDesc w = any({node.output[0], node.input[0], node.window.kernel, node.window.kernel});
  const bool adds = !others.empty();
  auto op = make(
      NormConv2dBackwardData{any(dy.desc.shape), w, result.x.desc, node.window, before.relu, adds, result.deferred});
  const TensorDesc wanted_dy = op.tensors()[0], wanted_w = op.tensors()[1];
  const Value grad = as(steps, name, dy, wanted_dy);
  const Value weight = backward_weight(node, wanted_w);
  Value second;
  if (adds) second = as(steps, name, others.front().value, result.x.desc);
  const TensorDesc channels = channels_desc(norm.channels);
  const Value dw = gradient_target(before.weight, channels), db = gradient_target(before.bias, channels);
  const Value dz = new_value(result.x.desc);
  const bool renormalizes = result.deferred;
  add(steps, node.name, "backward_data", std::move(op),
      {.dy = grad.where,
       .w = weight.where,
       .dy2 = second.where,
       .x = result.x.where,
       .y = before.relu && !renormalizes ? result.y.where : Ref{},
       .stats = result.saved.where,
       .weight = renormalizes ? parameter_place(before.weight) : Ref{},
       .bias = renormalizes ? parameter_place(before.bias) : Ref{},
       .sums = own_sums(norm),
       .dweight = dw.where,
       .dbias = db.where,
       .dz = dz.where});
  steps.back().gathers = plan_.options_.norm == BatchNormMode::sync;
  if (!plan_.options_.split_backward) finished(node.weight, node.bias);
  store_gradient(before.name + " weight", before.weight, dw);
  store_gradient(before.name + " bias", before.bias, db);
  others.assign(1, {dz, true});
  result.summed = true;
}

}  // namespace dp::engine
