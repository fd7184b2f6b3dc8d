#include "kernels/scalar_calls.h"

#include <algorithm>
#include <cmath>

namespace dp::test {
namespace {

using namespace dp::kernels;

// Runs an op of the loss family.
LossResult run_loss(OpRig& rig, Op& op, const HostTensor& logits, std::span<const std::byte> targets,
                    const StepInputs& inputs, bool gradient, const StepResults& before, std::optional<float> scale) {
  const LossScaler scaler{.scale = scale.value_or(1)};
  const auto device_scaler = rig.upload_bytes(&scaler, sizeof scaler);
  const DeviceTensor device_logits = upload_plain(rig, logits), dlogits = rig.poisoned(device_logits.desc);
  const auto device_targets = rig.upload_bytes(targets.data(), targets.size());
  const auto step = rig.upload_bytes(&inputs, sizeof inputs);
  const auto results = rig.upload_bytes(&before, sizeof before);
  rig.run(op, {device_logits.data(), device_targets->data(), step->data(), gradient ? dlogits.data() : nullptr,
               results->data(), device_scaler->data()});
  LossResult result;
  if (gradient) result.dlogits = rig.download(dlogits);
  rig.download_bytes(&result.results, *results, sizeof result.results);
  return result;
}

}  // namespace

LossResult softmax_cross_entropy(OpRig& rig, const HostTensor& logits, const std::vector<std::int32_t>& labels,
                                 const StepInputs& inputs, bool gradient, const StepResults& before,
                                 std::optional<float> scale) {
  const auto op = rig.context().make_op(
      SoftmaxCrossEntropy{.batch = logits.shape[0], .classes = logits.shape[1], .scaled = scale.has_value()});
  return run_loss(rig, *op, logits, std::as_bytes(std::span(labels)), inputs, gradient, before, scale);
}

LossResult loss_of_outputs(OpRig& rig, const OutputLoss& loss, const HostTensor& outputs, const HostTensor& targets,
                           const StepInputs& inputs, bool gradient, const StepResults& before,
                           std::optional<float> scale) {
  const auto op = rig.context().make_op(
      LossOfOutputs{loss, outputs.shape[0], outputs.shape[1], scale.has_value(), targets.shape[1] > outputs.shape[1]});
  const std::vector<float> floats(targets.values.begin(), targets.values.end());
  return run_loss(rig, *op, outputs, std::as_bytes(std::span(floats)), inputs, gradient, before, scale);
}

std::vector<TensorSegment> segments_of(std::int64_t count, TensorOfElement shape) {
  std::vector<TensorSegment> segments;
  for (std::int64_t at = 0; at < count; at += kNormBlock)
    segments.push_back({at, static_cast<std::int32_t>(std::min(kNormBlock, count - at)), 0, shape});
  return segments;
}

HostTensor optimizer_update(OpRig& rig, const UpdateKind& kind, HostTensor& weights, const HostTensor& gradients,
                            const std::vector<HostTensor*>& slots, const UpdateInputs& update,
                            const StepResults& results, const std::vector<std::uint8_t>& groups, StepResults* after) {
  const DType low = rig.context().activation_type();
  const std::int64_t count = weights.shape.numel();
  OptimizerUpdate desc{count, kind};
  if (low != rig.context().compute_type()) desc.copy = low;
  desc.stride = (count + kGroupElements - 1) / kGroupElements * kGroupElements;
  const DeviceTensor copy = rig.poisoned(rig.desc(weights.shape, rig.plain(weights.shape)));
  const DeviceTensor w = upload_plain(rig, weights), g = upload_plain(rig, gradients);
  // Between the slots is NaN.
  HostTensor state{{kMaxSlots * desc.stride},
                   std::vector<double>(static_cast<std::size_t>(kMaxSlots * desc.stride), NAN)};
  const auto place = [&](std::size_t slot) {
    return state.values.begin() + static_cast<std::int64_t>(slot) * desc.stride;
  };
  for (std::size_t i = 0; i < slots.size(); ++i) std::ranges::copy(slots[i]->values, place(i));
  const DeviceTensor device_state = upload_plain(rig, state);
  const auto map = groups.empty() ? nullptr : rig.upload_bytes(groups.data(), groups.size());
  StepInputs inputs;
  inputs.update = update;
  const auto step = rig.upload_bytes(&inputs, sizeof inputs);
  const auto device_results = rig.upload_bytes(&results, sizeof results);
  void* const groups_or_null = map ? map->data() : nullptr;
  if (tensor_work(kind) == TensorWork::none) {
    rig.run(*rig.context().make_op(desc), {w.data(), g.data(), slots.empty() ? nullptr : device_state.data(),
                                           groups_or_null, step->data(), device_results->data(), copy.data()});
  } else {
    const std::vector<TensorSegment> segments = segments_of(count, {});
    const auto parts = static_cast<std::int64_t>(segments.size());
    const std::vector<double> ones(2 * segments.size(), 1.0);
    const auto list = rig.upload_bytes(segments.data(), segments.size() * sizeof segments[0]),
               partials = rig.upload_bytes(ones.data(), ones.size() * sizeof(double)),
               ratios = rig.upload_bytes(ones.data(), sizeof(double));
    const DeviceTensor direction = rig.poisoned(w.desc);
    rig.run(*rig.context().make_op(UpdateDirection{parts, kind, desc.stride}),
            {w.data(), g.data(), device_state.data(), groups_or_null, step->data(), device_results->data(),
             list->data(), direction.data(), partials->data()});
    rig.run(*rig.context().make_op(ApplyDirection{parts, kind, desc.copy}),
            {w.data(), direction.data(), groups_or_null, step->data(), device_results->data(), list->data(),
             ratios->data(), copy.data()});
  }
  if (after != nullptr) rig.download_bytes(after, *device_results, sizeof *after);
  weights = rig.download_raw(w);
  state = rig.download_raw(device_state);
  for (std::size_t i = 0; i < slots.size(); ++i) std::copy_n(place(i), count, slots[i]->values.begin());
  return rig.download_raw(rig.relaid(copy, rig.plain_full(weights.shape)));
}

UpdateInputs update_inputs(const Optimizer& optimizer) {
  UpdateInputs inputs;
  inputs.groups[0].lr = learning_rate(optimizer);
  inputs.groups[0].weight_decay = std::visit([](const auto& own) { return own.weight_decay; }, optimizer);
  inputs.options = rule_options(optimizer);
  return inputs;
}

HostTensor sgd_update(OpRig& rig, HostTensor& weights, const HostTensor& gradients, HostTensor* momenta, const Sgd& sgd,
                      const StepResults& results) {
  const Sgd kind{.momentum = momenta ? 1.0f : 0.0f};
  const std::vector<HostTensor*> slots(momenta ? 1 : 0, momenta);
  return optimizer_update(rig, kind_of(kind), weights, gradients, slots, update_inputs(sgd), results);
}

std::vector<double> grad_norm_partials(OpRig& rig, const HostTensor& gradients) {
  const std::int64_t count = gradients.shape.numel();
  const DeviceTensor g = upload_plain(rig, gradients);
  std::vector<double> partials(static_cast<std::size_t>((count + kNormBlock - 1) / kNormBlock), -1.0);
  const auto memory = rig.upload_bytes(partials.data(), partials.size() * sizeof(double));
  rig.run(*rig.context().make_op(GradNormPartials{.count = count}), {g.data(), memory->data()});
  rig.download_bytes(partials.data(), *memory, partials.size() * sizeof(double));
  return partials;
}

StepResults grad_norm_finish(OpRig& rig, const std::vector<double>& partials, const StepInputs& inputs,
                             const StepResults& before) {
  const auto memory = rig.upload_bytes(partials.data(), partials.size() * sizeof(double));
  const auto step = rig.upload_bytes(&inputs, sizeof inputs);
  const auto results = rig.upload_bytes(&before, sizeof before);
  const auto op = rig.context().make_op(GradNormFinish{.blocks = static_cast<std::int64_t>(partials.size())});
  rig.run(*op, {memory->data(), step->data(), results->data()});
  StepResults after;
  rig.download_bytes(&after, *results, sizeof after);
  return after;
}

StepResults grad_norm_finish(OpRig& rig, const std::vector<double>& partials, const StepInputs& inputs,
                             const LossScaling& scaling, LossScaler& scaler) {
  const auto memory = rig.upload_bytes(partials.data(), partials.size() * sizeof(double));
  const auto step = rig.upload_bytes(&inputs, sizeof inputs);
  const StepResults before;
  const auto results = rig.upload_bytes(&before, sizeof before), state = rig.upload_bytes(&scaler, sizeof scaler);
  const auto op =
      rig.context().make_op(GradNormFinish{.blocks = static_cast<std::int64_t>(partials.size()), .scaling = scaling});
  rig.run(*op, {memory->data(), step->data(), results->data(), state->data()});
  StepResults after;
  rig.download_bytes(&after, *results, sizeof after);
  rig.download_bytes(&scaler, *state, sizeof scaler);
  return after;
}

HostTensor moving_average(OpRig& rig, const HostTensor& x, const HostTensor& average, double decay) {
  const DeviceTensor from = upload_plain(rig, x), to = upload_plain(rig, average);
  const StepInputs inputs{.average_share = 1 - decay};
  const auto step = rig.upload_bytes(&inputs, sizeof inputs);
  rig.run(*rig.context().make_op(MovingAverage{x.shape.numel()}), {from.data(), to.data(), step->data()});
  return rig.download_raw(to);
}

HostTensor accumulate(OpRig& rig, const HostTensor& x, const HostTensor& y) {
  const DeviceTensor from = upload_plain(rig, x), to = upload_plain(rig, y);
  rig.run(*rig.context().make_op(Accumulate{.count = x.shape.numel()}), {from.data(), to.data()});
  return rig.download_raw(to);
}

}  // namespace dp::test
