// Losses that are computed on the host: for programs that call forward(), backward() and step() themselves, and losses
// of their own for training steps.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

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
// torch.nn.MSELoss()(y, t). SoftCrossEntropyLoss: mean over the batch, as torch.nn.CrossEntropyLoss. Error(usage) for
// wrong shapes, types or parameters of the loss.
Loss output_loss(const OutputLoss& loss, const Tensor& outputs, const Tensor& targets);

struct Batch;

// A loss of a program's own, for DataParallelOptions::own_loss.
struct OwnLoss {
  std::string name;  // on the command line
  std::string note;  // one line for --help
  // The mean loss of a batch and its gradient. Gets the outputs of the whole batch, (B,N) in host memory, and the batch
  // with its labels or targets. Called once a batch, on the calling thread.
  std::function<Loss(const Tensor& outputs, const Batch& batch)> function;
};

// The losses that a program has added, for --own-loss.
namespace losses {
const std::vector<OwnLoss>& registry();
const OwnLoss& find(std::string_view name);  // Error(usage) for an unknown name lists the names
void add(OwnLoss loss);                      // as models::add()
}  // namespace losses

}  // namespace dp
