// The loss for users of the forward-backward-step interface. It is computed on the host; logits of a GPU are copied.
#include <fmt/format.h>

#include <algorithm>

#include "dp/error.h"
#include "dp/loss.h"
#include "kernels/device/backend.h"
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

}  // namespace

Loss cross_entropy(const Tensor& logits, const Tensor& labels, float label_smoothing) {
  if (logits.empty() || logits.shape().rank() != 2 || logits.numel() == 0)
    throw Error(ErrorCode::usage, "logits must be (batch, classes), not " + to_string(logits.shape()));
  if (labels.empty() || labels.dtype() != DType::i32 || labels.shape() != Shape{logits.shape()[0]})
    throw Error(ErrorCode::usage, fmt::format("labels must be int32 of shape ({},), not {} of {}", logits.shape()[0],
                                              to_string(labels.dtype()), to_string(labels.shape())));
  const std::int64_t batch = logits.shape()[0], classes = logits.shape()[1];
  for (const std::int32_t label : labels.span<std::int32_t>())
    if (label < 0 || label >= classes)
      throw Error(ErrorCode::usage, fmt::format("label {} is not one of {} classes", label, classes));
  if (!(label_smoothing >= 0 && label_smoothing < 1))
    throw Error(ErrorCode::usage, "label_smoothing must be in [0, 1)");

  const Tensor on_host = logits.storage()->host_accessible() ? logits : logits.clone();
  kernels::Context& context = loss_context(logits.dtype() == DType::f64 ? DeviceKind::reference : DeviceKind::cpu);
  const auto stream = context.make_stream();
  const auto op = context.make_op(kernels::SoftmaxCrossEntropy{batch, classes});
  kernels::StepInputs inputs;
  inputs.loss_scale = 1.0f / static_cast<float>(batch);
  inputs.label_smoothing = label_smoothing;
  kernels::StepResults results;
  Loss loss;
  loss.grad = Tensor(logits.shape(), logits.dtype());
  const auto workspace = context.allocate(std::max(op->workspace_bytes(), std::size_t{1}));
  kernels::run_op<kernels::SoftmaxCrossEntropy>(*op, *stream,
                                                {.logits = const_cast<void*>(on_host.raw()),
                                                 .labels = const_cast<void*>(labels.raw()),
                                                 .inputs = &inputs,
                                                 .dlogits = loss.grad.raw(),
                                                 .results = &results},
                                                workspace->data());
  stream->synchronize();
  loss.value = results.loss_sum / static_cast<double>(batch);
  return loss;
}

}  // namespace dp
