// Losses for users of the forward-backward-step interface. They are computed on the host; logits of a GPU are copied.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "dp/error.h"
#include "dp/loss.h"
#include "dp/named_entries.h"
#include "engine/parallel/host_stats.h"
#include "kernels/device/backend.h"
#include "kernels/loss/rank.h"
#include "kernels/op_args.h"
#include "kernels/step_state.h"

namespace dp {
namespace {

// One context per thread and device kind, cached because opening a context is slow.
kernels::Context& loss_context(DeviceKind kind) {
  thread_local std::vector<std::pair<DeviceKind, std::unique_ptr<kernels::Context>>> contexts;
  for (const auto& [known, context] : contexts)
    if (known == kind) return *context;
  contexts.emplace_back(kind, kernels::backend(kind).open({kind, 0}, {}));
  return *contexts.back().second;
}

void require(bool holds, const std::string& what) {
  if (!holds) throw Error(ErrorCode::usage, what);
}

void check_outputs(const Tensor& outputs, const char* what) {
  require(!outputs.empty() && outputs.shape().rank() == 2 && outputs.numel() > 0,
          fmt::format("{}, not {}", what, to_string(outputs.shape())));
}

void check_parameters(const OutputLoss& loss) {
  const auto parameter = [&](bool holds, const char* rule) {
    require(holds, fmt::format("loss {}: {}", name_of(loss), rule));
  };
  if (const auto* huber = std::get_if<HuberLoss>(&loss))
    parameter(std::isfinite(huber->delta) && huber->delta > 0, "delta must be positive");
  if (const auto* smooth = std::get_if<SmoothL1Loss>(&loss))
    parameter(std::isfinite(smooth->beta) && smooth->beta >= 0, "beta must be at least 0");
  if (const auto* bce = std::get_if<BceWithLogitsLoss>(&loss))
    parameter(std::isfinite(bce->pos_weight) && bce->pos_weight > 0, "pos_weight must be positive");
  if (const auto* focal = std::get_if<FocalLoss>(&loss)) {
    parameter(std::isfinite(focal->alpha) && focal->alpha <= 1, "alpha must be at most 1");
    parameter(std::isfinite(focal->gamma) && focal->gamma >= 0, "gamma must be at least 0");
  }
}

// Runs an op of the loss family. `gradient`: null if it is not wanted.
template <typename Desc>
kernels::StepResults run_loss(const Desc& desc, const Tensor& outputs, const Tensor& targets, float label_smoothing,
                              void* gradient) {
  const Tensor on_host = outputs.storage()->host_accessible() ? outputs : outputs.clone();
  kernels::Context& context = loss_context(outputs.dtype() == DType::f64 ? DeviceKind::reference : DeviceKind::cpu);
  const auto stream = context.make_stream();
  const auto op = context.make_op(desc);
  kernels::StepInputs inputs;
  inputs.loss_scale = 1.0f / static_cast<float>(desc.batch);
  inputs.label_smoothing = label_smoothing;
  kernels::StepResults results;
  const auto workspace = context.allocate(std::max(op->workspace_bytes(), std::size_t{1}));
  kernels::run_op<Desc>(*op, *stream,
                        {.logits = const_cast<void*>(on_host.raw()),
                         .targets = const_cast<void*>(targets.raw()),
                         .inputs = &inputs,
                         .dlogits = gradient,
                         .results = &results},
                        workspace->data());
  stream->synchronize();
  return results;
}

template <typename Desc>
Loss loss_and_gradient(const Desc& desc, const Tensor& outputs, const Tensor& targets, float label_smoothing) {
  Loss loss{0, Tensor(outputs.shape(), outputs.dtype())};
  const auto results = run_loss(desc, outputs, targets, label_smoothing, loss.grad.raw());
  loss.value = results.loss_sum / static_cast<double>(desc.batch);
  return loss;
}

}  // namespace

Loss cross_entropy(const Tensor& logits, const Tensor& labels, float label_smoothing) {
  check_outputs(logits, "logits must be (batch, classes)");
  require(!labels.empty() && labels.dtype() == DType::i32 && labels.shape() == Shape{logits.shape()[0]},
          fmt::format("labels must be int32 of shape ({},), not {} of {}", logits.shape()[0], to_string(labels.dtype()),
                      to_string(labels.shape())));
  const std::int64_t batch = logits.shape()[0], classes = logits.shape()[1];
  for (const std::int32_t label : labels.span<std::int32_t>())
    require(label >= 0 && label < classes, fmt::format("label {} is not one of {} classes", label, classes));
  require(label_smoothing >= 0 && label_smoothing < 1, "label_smoothing must be in [0, 1)");
  return loss_and_gradient(kernels::SoftmaxCrossEntropy{batch, classes}, logits, labels, label_smoothing);
}

namespace engine {

void add_accuracies(const Tensor& outputs, const Tensor& labels, Stats& stats) {
  const std::int64_t rows = outputs.shape()[0], each = outputs.numel() / rows;
  stats.samples += rows;
  for (std::int64_t n = 0; n < rows && stats.has_labels; ++n) {
    const std::int32_t label = labels.data<std::int32_t>()[n];
    const std::int64_t before = outputs.dtype() == DType::f64
                                    ? kernels::classes_before(outputs.data<double>() + n * each, each, label)
                                    : kernels::classes_before(outputs.data<float>() + n * each, each, label);
    stats.top1 += before < 1, stats.top5 += before < 5;
  }
}

Stats stats_of(const Tensor& outputs, const Batch& batch, const DataParallelOptions& options) {
  const std::int64_t rows = outputs.shape()[0], each = outputs.shape()[1];
  Stats stats{.has_labels = !batch.labels.empty() && batch.targets.empty()};
  if (options.own_loss) {
    stats.loss_sum = options.own_loss->function(outputs, batch).value * static_cast<double>(rows);
    add_accuracies(outputs, batch.labels, stats);
    return stats;
  }
  const kernels::StepResults results =
      options.output_loss
          ? run_loss(kernels::LossOfOutputs{*options.output_loss, rows, each}, outputs, batch.targets, 0, nullptr)
          : run_loss(kernels::SoftmaxCrossEntropy{rows, each}, outputs, batch.labels, 0, nullptr);
  stats.loss_sum = results.loss_sum, stats.samples = results.samples;
  stats.top1 = results.top1, stats.top5 = results.top5;
  return stats;
}

}  // namespace engine

namespace losses {
namespace {

std::vector<OwnLoss>& entries() {
  static std::vector<OwnLoss> all;
  return all;
}

}  // namespace

const std::vector<OwnLoss>& registry() { return entries(); }
const OwnLoss& find(std::string_view name) {
  require(!entries().empty(), fmt::format("loss '{}' does not exist: this program has added none", name));
  return find_entry(entries(), name, "loss");
}
void add(OwnLoss loss) { add_entry(entries(), std::move(loss), "loss"); }

}  // namespace losses

Loss output_loss(const OutputLoss& loss, const Tensor& outputs, const Tensor& targets) {
  check_parameters(loss);
  check_outputs(outputs, "outputs must be (batch, outputs)");
  require(!targets.empty() && targets.dtype() == DType::f32 && targets.shape() == outputs.shape(),
          fmt::format("targets must be float32 of shape {}, not {} of {}", to_string(outputs.shape()),
                      to_string(targets.dtype()), to_string(targets.shape())));
  return loss_and_gradient(kernels::LossOfOutputs{loss, outputs.shape()[0], outputs.shape()[1]}, outputs, targets, 0);
}

}  // namespace dp
