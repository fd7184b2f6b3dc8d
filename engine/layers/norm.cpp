// Batch normalisation: the statistics of a shard, their merge over all shards, and the steps that use them. Group and
// layer normalisation: one step in each direction.
#include "engine/layers/layers.h"

namespace dp::engine {

using namespace kernels;

namespace {

void forward_after_fold(Planner& plan, const Node& norm, NodeResult& result) {
  result.y = plan.result_of(norm.inputs[0]);
  if (norm.inputs.size() == 1) return;
  const PlanValue addend = plan.as(plan.forward, norm.name, plan.result_of(norm.inputs[1]), result.y.desc);
  plan.add(plan.forward, norm.name, "", plan.make(AddForward{result.y.desc, norm.relu}),
           {.a = result.y.where, .b = addend.where, .y = result.y.where});
}

// Called when the gradient sums are computed. `masks`: dz is dy, not yet masked by ReLU.
void finish(Planner& plan, const Node& node, const NodeResult& result, const NodeGradient& dz, bool masks) {
  PlanSteps& steps = plan.backward;
  const Norm& norm = plan.norms.norm(node.norm);
  const bool sync = plan.options.norm == BatchNormMode::sync;
  const bool addend = node.inputs.size() > 1 && plan.needs_gradient(node.inputs[1]);
  if (plan.needs_gradient(node.inputs[0])) {
    const PlanValue dx = addend ? plan.new_value(dz.value.desc) : plan.gradients.in_place_or_new(dz);
    plan.add(steps, node.name, "backward",
             plan.make(BatchNormBackward{result.x.desc, sync ? plan.options.shards : 1, masks}),
             {.dz = dz.value.where,
              .x = result.x.where,
              .y = masks ? result.y.where : Ref{},
              .stats = result.saved.where,
              .weight = plan.parameter_place(node.weight),
              .sums = sync ? plan.statistics.of_all(norm.sums) : plan.statistics.own_sums(norm),
              .dx = dx.where});
    plan.gradients.give(node.inputs[0], dx, true);
  }
  if (node.weight >= 0) plan.gradients.finished(node.weight, node.bias);
  if (addend) plan.gradients.give(node.inputs[1], dz.value, dz.owned);
}

}  // namespace

void forward_folded(Planner& plan, const Node& conv, const Node& norm, const PlanValue& x, NodeResult& result) {
  const bool adds = norm.inputs.size() > 1;
  const TensorDesc in = plan.activation_desc(x.desc);
  auto op = plan.make(Conv2dForward{in, plan.any(weight_shape(conv)), plan.batched(conv.output), conv.window,
                                    /*bias=*/true, norm.relu && !adds, /*training=*/false});
  const PlanValue weight = new_folded(plan, op.tensors()[1]),
                  bias = new_folded(plan, plan.channels_desc(conv.output[0]));

  // BatchNormFold keeps the layout of the weights. If the convolution reads another one, a second step reorders them.
  const Norm& own = plan.norms.norm(norm.norm);
  const auto running = [&](std::int64_t offset) -> Ref {
    return {Space::running_statistics, static_cast<std::size_t>(offset) * size_of(plan.context.compute_type())};
  };
  const PlanValue kept = plan.layer_weights(conv.weight);
  const PlanValue folded = kept.desc.layout == weight.desc.layout ? weight : plan.new_value(kept.desc);
  plan.add(plan.fold, conv.name, "fold", plan.make(BatchNormFold{kept.desc, own.eps}),
           {.w = kept.where,
            .b = plan.parameter_place(conv.bias),
            .weight = plan.parameter_place(norm.weight),
            .bias = plan.parameter_place(norm.bias),
            .mean = running(own.mean),
            .variance = running(own.variance),
            .folded_w = folded.where,
            .folded_b = bias.where});
  if (folded.where.space != Space::folded)
    plan.add(plan.fold, conv.name, "fold reorder", plan.make(Reorder{kept.desc, weight.desc}),
             {.src = folded.where, .dst = weight.where});

  PlanSteps& steps = plan.forward;
  const PlanValue from = plan.as(steps, conv.name, x, op.tensors()[0]);
  result.y = plan.new_value(op.tensors()[2]);
  plan.add(steps, conv.name + "+" + norm.name, "", std::move(op),
           {.x = from.where, .w = weight.where, .b = bias.where, .y = result.y.where});
}

void forward_norm(Planner& plan, const Node& node, const PlanValue& x, NodeResult& result) {
  if (node.inputs[0] >= 0 && plan.nodes[index(node.inputs[0])].kind == NodeKind::conv &&
      plan.folded_norm(plan.nodes[index(node.inputs[0])]) == &node)
    return forward_after_fold(plan, node, result);
  PlanSteps& steps = plan.forward;
  const Norm& norm = plan.norms.norm(node.norm);
  const bool training = plan.options.training, sync = training && plan.options.norm == BatchNormMode::sync;
  result.x = plan.as(steps, node.name, x, plan.computed(x.desc));
  const bool taken = node.inputs[0] >= 0 && takes_moments(plan, plan.nodes[index(node.inputs[0])]);
  if (!taken || sync) result.saved = plan.new_doubles(1 + 2 * norm.channels);
  const std::size_t element = size_of(plan.context.compute_type());
  const Ref mean{Space::running_statistics, static_cast<std::size_t>(norm.mean) * element},
      variance{Space::running_statistics, static_cast<std::size_t>(norm.variance) * element};
  if (training || !node.tracked) {
    if (!taken) {
      const std::optional<double> eps = training ? plan.eps_of_shard(norm) : norm.eps;
      plan.add(steps, node.name, "moments", plan.make(BatchNormMoments{result.x.desc, eps}),
               {.x = result.x.where,
                .moments = training ? plan.statistics.own_moments(norm) : plan.new_doubles(1 + 2 * norm.channels).where,
                .stats = sync ? Ref{} : result.saved.where});
      steps.back().ends_segment = sync;
    }
    if (sync)
      plan.add(steps, node.name, "statistics", plan.make(BatchNormMerge{norm.channels, plan.options.shards, norm.eps}),
               {.moments = plan.statistics.of_all(norm.moments), .stats = result.saved.where});
  } else {
    plan.add(steps, node.name, "statistics", plan.make(BatchNormRunning{norm.channels, norm.eps}),
             {.mean = mean, .variance = variance, .stats = result.saved.where});
  }
  if (defers(plan, node, result.x.desc)) {
    result.deferred = true;
    return;
  }
  PlanValue addend;
  const bool adds = node.inputs.size() > 1;
  if (adds) addend = plan.as(steps, node.name, plan.result_of(node.inputs[1]), result.x.desc);
  result.y = plan.new_value(result.x.desc);
  plan.add(steps, node.name, "", plan.make(BatchNormForward{result.x.desc, node.relu, adds}),
           {.x = result.x.where,
            .stats = result.saved.where,
            .weight = plan.parameter_place(node.weight),
            .bias = plan.parameter_place(node.bias),
            .addend = addend.where,
            .y = result.y.where});
}

// From the statistics of shard 0, or of all shards. The master runs this step.
void update_running_statistics(Planner& plan) {
  if (plan.norms.count() == 0) return;
  BatchNormTrack track{.parts = plan.options.norm == BatchNormMode::master ? 1 : plan.options.shards};
  for (int i = 0; i < plan.norms.count(); ++i) {
    const Norm& norm = plan.norms.norm(i);
    track.norms.push_back({norm.channels, norm.momentum,
                           static_cast<std::int64_t>(plan.statistics.of_all(norm.moments).offset / sizeof(double)),
                           norm.mean, norm.variance});
  }
  plan.add(plan.running_statistics, "running", "statistics", plan.make(track),
           {.moments = {Space::moments}, .running = {Space::running_statistics}});
}

void backward_norm(Planner& plan, const Node& node, const NodeResult& result, std::vector<NodeGradient> gradients) {
  PlanSteps& steps = plan.backward;
  const Norm& norm = plan.norms.norm(node.norm);
  const std::string name = node.name + " backward";

  if (result.summed) {
    const NodeGradient dz = gradients.front();
    finish(plan, node, result, dz, false);
    return;
  }

  // The sums op adds two gradients itself; more are rare.
  NodeGradient second;
  const bool two = gradients.size() == 2;
  if (two) {
    second = gradients.back();
    const PlanValue same = plan.as(steps, name, second.value, result.y.desc);
    second = {same, second.owned || same.where.offset != second.value.where.offset};
    gradients.pop_back();
  }
  NodeGradient dy = plan.gradients.sum(node, result, std::move(gradients));

  // dz, the gradient masked by ReLU, must be stored if the addend needs it or if it is the sum of two gradients.
  const bool addend = node.inputs.size() > 1 && plan.needs_gradient(node.inputs[1]);
  const bool writes = two || (node.relu && addend);
  NodeGradient dz = dy;
  if (writes) dz = {dy.owned ? dy.value : second.owned && two ? second.value : plan.new_value(dy.value.desc), true};
  const bool affine = node.weight >= 0;
  PlanValue dw, db;
  if (affine) {
    const TensorDesc channels = plan.channels_desc(norm.channels);
    dw = plan.gradients.target(node.weight, channels), db = plan.gradients.target(node.bias, channels);
  }
  const Ref y = node.relu ? result.y.where : Ref{};
  plan.add(steps, node.name, "backward sums", plan.make(BatchNormBackwardSums{result.x.desc, node.relu}),
           {.dy = dy.value.where,
            .dy2 = two ? second.value.where : Ref{},
            .x = result.x.where,
            .y = y,
            .stats = result.saved.where,
            .sums = plan.statistics.own_sums(norm),
            .dweight = dw.where,
            .dbias = db.where,
            .dz = writes ? dz.value.where : Ref{}});
  plan.gradients.end_sums(norm);
  if (affine) {
    plan.gradients.store(node.name + " weight", node.weight, dw);
    plan.gradients.store(node.name + " bias", node.bias, db);
  }

  finish(plan, node, result, dz, node.relu && !writes);
}

void forward_group_norm(Planner& plan, const Node& node, const PlanValue& x, NodeResult& result) {
  result.x = plan.as(plan.forward, node.name, x, plan.computed(x.desc));
  result.y = plan.new_value(result.x.desc);
  result.saved = plan.new_doubles(2 * plan.options.batch * groups_of(result.x.desc.shape, node.groups));
  const bool affine = node.weight >= 0;
  plan.add(plan.forward, node.name, "",
           plan.make(GroupNormForward{result.x.desc, node.groups, node.eps, affine, node.relu}),
           {.x = result.x.where,
            .weight = plan.parameter_place(node.weight),
            .bias = plan.parameter_place(node.bias),
            .y = result.y.where,
            .stats = result.saved.where});
}

void backward_group_norm(Planner& plan, const Node& node, const NodeGradient& dy, const NodeResult& result) {
  const bool affine = node.weight >= 0;
  PlanValue dw, db;
  if (affine) {
    const TensorDesc channels = plan.channels_desc(node.output[0]);
    dw = plan.gradients.target(node.weight, channels), db = plan.gradients.target(node.bias, channels);
  }
  const PlanValue dx = plan.gradients.in_place_or_new(dy);
  plan.add(plan.backward, node.name, "backward", plan.make(GroupNormBackward{result.x.desc, node.groups, affine}),
           {.dy = dy.value.where,
            .x = result.x.where,
            .weight = plan.parameter_place(node.weight),
            .stats = result.saved.where,
            .dx = dx.where,
            .dweight = dw.where,
            .dbias = db.where});
  if (affine) {
    plan.gradients.store(node.name + " weight", node.weight, dw);
    plan.gradients.store(node.name + " bias", node.bias, db);
    plan.gradients.finished(node.weight, node.bias);
  }
  plan.gradients.give(node.inputs[0], dx, true);
}

}  // namespace dp::engine
