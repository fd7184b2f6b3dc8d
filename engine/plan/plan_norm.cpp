#include "engine/plan/plan_norm.h"

namespace dp::engine {

using namespace kernels;

PlanValue NormSteps::new_folded(const TensorDesc& desc) {
  constexpr std::size_t kAlign = 64;
  const Ref where{Space::folded, plan_.folded_bytes};
  plan_.folded_bytes += (desc.layout.bytes + kAlign - 1) / kAlign * kAlign;
  return {where, desc};
}

void NormSteps::forward_folded(const Node& conv, const Node& norm, const PlanValue& x, NodeResult& result) {
  const bool adds = norm.inputs.size() > 1;
  const TensorDesc in = plan_.activation_desc(x.desc);
  auto op = plan_.make(Conv2dForward{in, plan_.any(weight_shape(conv)), plan_.batched(conv.output), conv.window,
                                     /*bias=*/true, norm.relu && !adds});
  const PlanValue weight = new_folded(op.tensors()[1]), bias = new_folded(plan_.channels_desc(conv.output[0]));

  // BatchNormFold keeps the layout of the weights. If the convolution reads another one, a second step reorders them.
  const Norm& own = plan_.norms.norm(norm.norm);
  const auto running = [&](std::int64_t offset) -> Ref {
    return {Space::buffer, static_cast<std::size_t>(offset) * size_of(plan_.context.compute_type())};
  };
  const PlanValue kept = plan_.layer_weights(conv.weight);
  const PlanValue folded = kept.desc.layout == weight.desc.layout ? weight : plan_.new_value(kept.desc);
  plan_.add(plan_.fold, conv.name, "fold", plan_.make(BatchNormFold{kept.desc, own.eps}),
            {.w = kept.where,
             .b = plan_.parameter_place(conv.bias),
             .weight = plan_.parameter_place(norm.weight),
             .bias = plan_.parameter_place(norm.bias),
             .mean = running(own.mean),
             .variance = running(own.variance),
             .folded_w = folded.where,
             .folded_b = bias.where});
  if (folded.where.space != Space::folded)
    plan_.add(plan_.fold, conv.name, "fold reorder", plan_.make(Reorder{kept.desc, weight.desc}),
              {.src = folded.where, .dst = weight.where});

  PlanSteps& steps = plan_.forward;
  const PlanValue from = plan_.as(steps, conv.name, x, op.tensors()[0]);
  result.y = plan_.new_value(op.tensors()[2]);
  plan_.add(steps, conv.name + "+" + norm.name, "", std::move(op),
            {.x = from.where, .w = weight.where, .b = bias.where, .y = result.y.where});
}

void NormSteps::forward_after_fold(const Node& norm, NodeResult& result) {
  result.y = plan_.result_of(norm.inputs[0]);
  if (norm.inputs.size() == 1) return;
  const PlanValue addend = plan_.as(plan_.forward, norm.name, plan_.result_of(norm.inputs[1]), result.y.desc);
  plan_.add(plan_.forward, norm.name, "", plan_.make(AddForward{result.y.desc, norm.relu}),
            {.a = result.y.where, .b = addend.where, .y = result.y.where});
}

void NormSteps::forward(const Node& node, const PlanValue& x, NodeResult& result) {
  if (node.inputs[0] >= 0 && plan_.nodes[index(node.inputs[0])].kind == NodeKind::conv &&
      plan_.folded_norm(plan_.nodes[index(node.inputs[0])]) == &node)
    return forward_after_fold(node, result);
  PlanSteps& steps = plan_.forward;
  const Norm& norm = plan_.norms.norm(node.norm);
  const bool sync = plan_.options.norm == BatchNormMode::sync;
  result.x = plan_.as(steps, node.name, x, plan_.computed(x.desc));
  const bool taken = node.inputs[0] >= 0 && fused_.takes_moments(plan_.nodes[index(node.inputs[0])]);
  if (!taken || sync) result.saved = plan_.new_doubles(1 + 2 * norm.channels);
  const std::size_t element = size_of(plan_.context.compute_type());
  const Ref mean{Space::buffer, static_cast<std::size_t>(norm.mean) * element},
      variance{Space::buffer, static_cast<std::size_t>(norm.variance) * element};
  if (plan_.options.training) {
    if (!taken) {
      plan_.add(steps, node.name, "moments", plan_.make(BatchNormMoments{result.x.desc, plan_.eps_of_part(norm)}),
                {.x = result.x.where, .moments = plan_.own_moments(norm), .stats = sync ? Ref{} : result.saved.where});
      steps.back().gathers = sync;
    }
    if (sync)
      plan_.add(steps, node.name, "statistics",
                plan_.make(BatchNormMerge{norm.channels, plan_.options.shards, norm.eps}),
                {.moments = plan_.all_shards(norm.moments), .stats = result.saved.where});
  } else {
    plan_.add(steps, node.name, "statistics", plan_.make(BatchNormRunning{norm.channels, norm.eps}),
              {.mean = mean, .variance = variance, .stats = result.saved.where});
  }
  if (fused_.defers(node, result.x.desc)) {
    result.deferred = true;
    return;
  }
  PlanValue addend;
  const bool adds = node.inputs.size() > 1;
  if (adds) addend = plan_.as(steps, node.name, plan_.result_of(node.inputs[1]), result.x.desc);
  result.y = plan_.new_value(result.x.desc);
  plan_.add(steps, node.name, "", plan_.make(BatchNormForward{result.x.desc, node.relu, adds}),
            {.x = result.x.where,
             .stats = result.saved.where,
             .weight = plan_.parameter_place(node.weight),
             .bias = plan_.parameter_place(node.bias),
             .addend = addend.where,
             .y = result.y.where});
}

// Uses part 0, or all parts. The replica with part 0 runs this step.
void NormSteps::update_running() {
  if (plan_.norms.count() == 0) return;
  BatchNormTrack track{.parts = plan_.options.norm == BatchNormMode::master ? 1 : plan_.options.shards};
  for (int i = 0; i < plan_.norms.count(); ++i) {
    const Norm& norm = plan_.norms.norm(i);
    track.norms.push_back({norm.channels, norm.momentum,
                           static_cast<std::int64_t>(plan_.all_shards(norm.moments).offset / sizeof(double)), norm.mean,
                           norm.variance});
  }
  plan_.add(plan_.running, "running", "statistics", plan_.make(track),
            {.moments = {Space::moments}, .running = {Space::buffer}});
}

void NormSteps::backward(const Node& node, const NodeResult& result, std::vector<NodeGradient> gradients) {
  PlanSteps& steps = plan_.backward;
  const Norm& norm = plan_.norms.norm(node.norm);
  const bool sync = plan_.options.norm == BatchNormMode::sync;
  const std::string name = node.name + " backward";

  if (result.summed) {
    const NodeGradient dz = gradients.front();
    finish(node, result, dz, false);
    return;
  }

  // The sums op adds two gradients itself; more are rare.
  NodeGradient second;
  const bool two = gradients.size() == 2;
  if (two) {
    second = gradients.back();
    const PlanValue same = plan_.as(steps, name, second.value, result.y.desc);
    second = {same, second.owned || same.where.offset != second.value.where.offset};
    gradients.pop_back();
  }
  NodeGradient dy = gradients_.sum(node, result, std::move(gradients));

  // dz, the gradient masked by ReLU, must be stored if the addend needs it or if it is the sum of two gradients.
  const bool addend = node.inputs.size() > 1 && plan_.needs_gradient(node.inputs[1]);
  const bool writes = two || (node.relu && addend);
  NodeGradient dz = dy;
  if (writes) dz = {dy.owned ? dy.value : second.owned && two ? second.value : plan_.new_value(dy.value.desc), true};
  const TensorDesc channels = plan_.channels_desc(norm.channels);
  const PlanValue dw = gradients_.target(node.weight, channels), db = gradients_.target(node.bias, channels);
  const Ref y = node.relu ? result.y.where : Ref{};
  plan_.add(steps, node.name, "backward sums", plan_.make(BatchNormBackwardSums{result.x.desc, node.relu}),
            {.dy = dy.value.where,
             .dy2 = two ? second.value.where : Ref{},
             .x = result.x.where,
             .y = y,
             .stats = result.saved.where,
             .sums = plan_.own_sums(norm),
             .dweight = dw.where,
             .dbias = db.where,
             .dz = writes ? dz.value.where : Ref{}});
  steps.back().gathers = sync;
  gradients_.store(node.name + " weight", node.weight, dw);
  gradients_.store(node.name + " bias", node.bias, db);

  finish(node, result, dz, node.relu && !writes);
}

void NormSteps::finish(const Node& node, const NodeResult& result, const NodeGradient& dz, bool masks) {
  PlanSteps& steps = plan_.backward;
  const Norm& norm = plan_.norms.norm(node.norm);
  const bool sync = plan_.options.norm == BatchNormMode::sync;
  const bool addend = node.inputs.size() > 1 && plan_.needs_gradient(node.inputs[1]);
  if (plan_.needs_gradient(node.inputs[0])) {
    const PlanValue dx = addend ? plan_.new_value(dz.value.desc) : gradients_.in_place_or_new(dz);
    plan_.add(steps, node.name, "backward",
              plan_.make(BatchNormBackward{result.x.desc, sync ? plan_.options.shards : 1, masks}),
              {.dz = dz.value.where,
               .x = result.x.where,
               .y = masks ? result.y.where : Ref{},
               .stats = result.saved.where,
               .weight = plan_.parameter_place(node.weight),
               .sums = sync ? plan_.all_shards(norm.sums) : plan_.own_sums(norm),
               .dx = dx.where});
    gradients_.give(node.inputs[0], dx, true);
  }
  gradients_.finished(node.weight, node.bias);
  if (addend) gradients_.give(node.inputs[1], dz.value, dz.owned);
}

}  // namespace dp::engine
