// Batch normalisation in a plan: the statistics of this part, merging them with the other parts, and the steps that use
// them.
#include "engine/plan/plan_builder.h"

namespace dp::engine {

using namespace kernels;

const Node* PlanBuilder::folded_norm(const Node& conv) const {
  const int norm = neighbours_of(conv).folds;
  return plan_.options_.folds_norms && table_ != nullptr && norm >= 0 ? &nodes_[index(norm)] : nullptr;
}

PlanBuilder::Value PlanBuilder::new_folded(const TensorDesc& desc) {
  constexpr std::size_t kAlign = 64;
  const Ref where{Space::folded, plan_.folded_bytes_};
  plan_.folded_bytes_ += (desc.layout.bytes + kAlign - 1) / kAlign * kAlign;
  return {where, desc};
}

void PlanBuilder::forward_folded(const Node& conv, const Node& norm, const Value& x, Result& result) {
  const bool adds = norm.inputs.size() > 1;
  const TensorDesc in = x.desc.type == context_.activation_type() ? x.desc : any(x.desc.shape);
  auto op = make(
      Conv2dForward{in, any(weight_shape(conv)), batched(conv.output), conv.window, /*bias=*/true, norm.relu && !adds});
  const Value weight = new_folded(op.tensors()[1]), bias = new_folded(channels_desc(conv.output[0]));

  // BatchNormFold keeps the layout of the weights. If the convolution reads another one, a second step reorders them.
  const Norm& own = norms_.norm(norm.norm);
  const auto running = [&](std::int64_t offset) -> Ref {
    return {Space::buffer, static_cast<std::size_t>(offset) * size_of(context_.compute_type())};
  };
  const Value kept = weights(conv.weight);
  const Value folded = kept.desc.layout == weight.desc.layout ? weight : new_value(kept.desc);
  add(plan_.fold_, conv.name, "fold", make(BatchNormFold{kept.desc, own.eps}),
      {.w = kept.where,
       .b = parameter_place(conv.bias),
       .weight = parameter_place(norm.weight),
       .bias = parameter_place(norm.bias),
       .mean = running(own.mean),
       .variance = running(own.variance),
       .folded_w = folded.where,
       .folded_b = bias.where});
  if (folded.where.space != Space::folded)
    add(plan_.fold_, conv.name, "fold reorder", make(Reorder{kept.desc, weight.desc}),
        {.src = folded.where, .dst = weight.where});

  Steps& steps = plan_.forward_;
  const Value from = as(steps, conv.name, x, op.tensors()[0]);
  result.y = new_value(op.tensors()[2]);
  add(steps, conv.name + "+" + norm.name, "", std::move(op),
      {.x = from.where, .w = weight.where, .b = bias.where, .y = result.y.where});
}

void PlanBuilder::forward_after_fold(const Node& norm, Result& result) {
  result.y = result_of(norm.inputs[0]);
  if (norm.inputs.size() == 1) return;
  const Value addend = as(plan_.forward_, norm.name, result_of(norm.inputs[1]), result.y.desc);
  add(plan_.forward_, norm.name, "", make(AddForward{result.y.desc, norm.relu}),
      {.a = result.y.where, .b = addend.where, .y = result.y.where});
}

void PlanBuilder::forward_norm(const Node& node, const Value& x, Result& result) {
  if (node.inputs[0] >= 0 && nodes_[index(node.inputs[0])].kind == NodeKind::conv &&
      folded_norm(nodes_[index(node.inputs[0])]) == &node)
    return forward_after_fold(node, result);
  Steps& steps = plan_.forward_;
  const Norm& norm = norms_.norm(node.norm);
  const bool sync = plan_.options_.norm == BatchNormMode::sync;
  result.x = as(steps, node.name, x, computed(x.desc));
  const bool taken = node.inputs[0] >= 0 && takes_moments(nodes_[index(node.inputs[0])]);
  if (!taken || sync) result.saved = new_doubles(1 + 2 * norm.channels);
  const std::size_t element = size_of(context_.compute_type());
  const Ref mean{Space::buffer, static_cast<std::size_t>(norm.mean) * element},
      variance{Space::buffer, static_cast<std::size_t>(norm.variance) * element};
  if (plan_.options_.training) {
    if (!taken) {
      add(steps, node.name, "moments", make(BatchNormMoments{result.x.desc, eps_of_part(norm)}),
          {.x = result.x.where, .moments = own_moments(norm), .stats = sync ? Ref{} : result.saved.where});
      steps.back().gathers = sync;
    }
    if (sync)
      add(steps, node.name, "statistics", make(BatchNormMerge{norm.channels, plan_.options_.shards, norm.eps}),
          {.moments = all_shards(norm.moments), .stats = result.saved.where});
  } else {
    add(steps, node.name, "statistics", make(BatchNormRunning{norm.channels, norm.eps}),
        {.mean = mean, .variance = variance, .stats = result.saved.where});
  }
  if (defers(node, result.x.desc)) {
    result.deferred = true;
    result.y = {{}, result.x.desc};
    return;
  }
  Value addend;
  const bool adds = node.inputs.size() > 1;
  if (adds) addend = as(steps, node.name, result_of(node.inputs[1]), result.x.desc);
  result.y = new_value(result.x.desc);
  add(steps, node.name, "", make(BatchNormForward{result.x.desc, node.relu, adds}),
      {.x = result.x.where,
       .stats = result.saved.where,
       .weight = parameter_place(node.weight),
       .bias = parameter_place(node.bias),
       .addend = addend.where,
       .y = result.y.where});
}

// Uses part 0, or all parts. The replica with part 0 runs this step.
void PlanBuilder::update_running() {
  if (norms_.count() == 0) return;
  BatchNormTrack track{.parts = plan_.options_.norm == BatchNormMode::master ? 1 : plan_.options_.shards};
  for (int i = 0; i < norms_.count(); ++i) {
    const Norm& norm = norms_.norm(i);
    track.norms.push_back({norm.channels, norm.momentum,
                           static_cast<std::int64_t>(all_shards(norm.moments).offset / sizeof(double)), norm.mean,
                           norm.variance});
  }
  add(plan_.running_, "running", "statistics", make(track), {.moments = {Space::moments}, .running = {Space::buffer}});
}

void PlanBuilder::backward_norm(const Node& node, const Result& result, std::vector<Gradient> gradients) {
  Steps& steps = plan_.backward_;
  const Norm& norm = norms_.norm(node.norm);
  const bool sync = plan_.options_.norm == BatchNormMode::sync;
  const std::string name = node.name + " backward";

  if (result.summed) {
    const Gradient dz = gradients.front();
    finish_norm(node, result, dz, false);
    return;
  }

  // The sums op adds two gradients itself; more are rare.
  Gradient second;
  const bool two = gradients.size() == 2;
  if (two) {
    second = gradients.back();
    const Value same = as(steps, name, second.value, result.y.desc);
    second = {same, second.owned || same.where.offset != second.value.where.offset};
    gradients.pop_back();
  }
  Gradient dy = sum(node, result, std::move(gradients));

  // dz, the gradient masked by ReLU, must be stored if the addend needs it or if it is the sum of two gradients.
  const bool addend = node.inputs.size() > 1 && needs_gradient(node.inputs[1]);
  const bool writes = two || (node.relu && addend);
  Gradient dz = dy;
  if (writes) dz = {dy.owned ? dy.value : second.owned && two ? second.value : new_value(dy.value.desc), true};
  const TensorDesc channels = channels_desc(norm.channels);
  const Value dw = gradient_target(node.weight, channels), db = gradient_target(node.bias, channels);
  const Ref y = node.relu ? result.y.where : Ref{};
  add(steps, node.name, "backward sums", make(BatchNormBackwardSums{result.x.desc, node.relu}),
      {.dy = dy.value.where,
       .dy2 = two ? second.value.where : Ref{},
       .x = result.x.where,
       .y = y,
       .stats = result.saved.where,
       .sums = own_sums(norm),
       .dweight = dw.where,
       .dbias = db.where,
       .dz = writes ? dz.value.where : Ref{}});
  steps.back().gathers = sync;
  store_gradient(node.name + " weight", node.weight, dw);
  store_gradient(node.name + " bias", node.bias, db);

  finish_norm(node, result, dz, node.relu && !writes);
}

void PlanBuilder::finish_norm(const Node& node, const Result& result, const Gradient& dz, bool masks) {
  Steps& steps = plan_.backward_;
  const Norm& norm = norms_.norm(node.norm);
  const bool sync = plan_.options_.norm == BatchNormMode::sync;
  const bool addend = node.inputs.size() > 1 && needs_gradient(node.inputs[1]);
  if (needs_gradient(node.inputs[0])) {
    const Value dx = addend ? new_value(dz.value.desc) : in_place_or_new(dz);
    add(steps, node.name, "backward", make(BatchNormBackward{result.x.desc, sync ? plan_.options_.shards : 1, masks}),
        {.dz = dz.value.where,
         .x = result.x.where,
         .y = masks ? result.y.where : Ref{},
         .stats = result.saved.where,
         .weight = parameter_place(node.weight),
         .sums = sync ? all_shards(norm.sums) : own_sums(norm),
         .dx = dx.where});
    give(node.inputs[0], dx, true);
  }
  finished(node.weight, node.bias);
  if (addend) give(node.inputs[1], dz.value, dz.owned);
}

}  // namespace dp::engine
