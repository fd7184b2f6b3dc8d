// The loss for programs that call forward(), backward() and step() themselves.
#pragma once

#include "dp/tensor.h"

namespace dp {

struct Loss {
  double value = 0;  // mean over the batch
  Tensor grad;       // d(value)/d(logits), in host memory, of the logits' shape and type
};

// Mean softmax cross-entropy of logits (B, classes) with int32 labels (B), as torch.nn.functional.cross_entropy.
// Computed on the host. Error(usage) for wrong shapes, types or labels.
Loss cross_entropy(const Tensor& logits, const Tensor& labels, float label_smoothing = 0);

}  // namespace dp
