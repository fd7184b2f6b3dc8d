// Losses for programs that call forward(), backward() and step() themselves. They are computed on the host.
#pragma once

#include "dp/loss_functions.h"
#include "dp/tensor.h"

namespace dp {

struct Loss {
  double value = 0;  // mean over the batch
  Tensor grad;       // d(value)/d(logits), in host memory, of the logits' shape and type
};

// Mean softmax cross-entropy of logits (B, classes) with int32 labels (B), as torch.nn.functional.cross_entropy.
// Error(usage) for wrong shapes, types or labels.
Loss cross_entropy(const Tensor& logits, const Tensor& labels, float label_smoothing = 0);

// Mean over the elements of the loss of outputs (B, N) with float32 targets (B, N): output_loss(MseLoss{}, y, t) is
// torch.nn.MSELoss()(y, t). Error(usage) for wrong shapes, types or parameters of the loss.
Loss output_loss(const OutputLoss& loss, const Tensor& outputs, const Tensor& targets);

}  // namespace dp
