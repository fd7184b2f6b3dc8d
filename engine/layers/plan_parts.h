// What a plan consists of: steps, and the memory that they address.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dp/parallel_options.h"
#include "kernels/op_args.h"

namespace dp::engine {

enum class Space : std::uint8_t {
  none,
  activation,
  value,
  low_value,  // mixed precision: values in the activation type
  folded,     // evaluation: the plan's own weights, reordered or with a folded normalisation
  gradient,
  running_statistics,
  moments,  // batch statistics of all shards
  input,
  labels,
  samples,
  step_inputs,
  step_results,
  loss_scaler,
  count
};

// An address in one of the replica's memories.
struct Ref {
  Space space = Space::none;
  std::size_t offset = 0;        // bytes
  std::size_t shard_stride = 0;  // moments: bytes between the entries of two shards
};

// A range of the moments arena: one statistic, of all shards in order. Each replica computes it for its own shards, and
// an all-gather gives it to every replica.
struct AllGather {
  std::size_t offset = 0, shard_bytes = 0;
};

struct PlanStep {
  std::string name;  // node and op, "conv2+relu backward_data"; forward: the node alone
  std::string node;  // "conv2+relu"
  kernels::OpDesc desc;
  std::unique_ptr<kernels::Op> op;  // made from desc
  std::array<Ref, kernels::kMaxOpArgs> args{};
  int arg_count = 0;
  std::int64_t bytes = 0;  // read and written (OpWork)
  int ready_from = -1;     // backward: gradients of entries >= this are final; backward no longer reads their weights
  bool ends_segment = false;  // later steps read a statistic of all shards: an AllGather of the stage follows
};

struct PlanOptions {
  std::int64_t batch = 1;  // rows of this replica's shard
  bool training = true;
  bool accumulate = false;  // gradients are added to those of earlier micro-batches
  bool dropout = true;
  BatchNormMode norm = BatchNormMode::master;
  std::optional<OutputLoss> output_loss{};  // empty: cross-entropy
  bool sample_weights = false;              // with output_loss
  bool scales_loss = false;                 // gradients are multiplied by LossScaler::scale
  // Training: one op may compute logits and loss. The logits are then valid after loss(), not after forward().
  bool joins_loss = false;
  int shards = 1;  // of the batch, over all replicas
  // For a stage of a pipeline. The first stage reads images and has no `input`. Every other stage reads the previous
  // stage's output, which has the type and layout of `input`, and computes its gradient. The last stage computes the
  // loss.
  std::optional<kernels::TensorDesc> input{};
  bool last = true;
  // The weight gradients of convolutions and linear layers are computed by weight_gradients(), not by backward().
  bool split_backward = false;
  bool folds_norms = false;  // evaluation: folds batch normalisations into the convolutions before them
  // Training: whether each parameter of the model is frozen. Backward computes no gradients of frozen parameters, and
  // omits all layers before the first trained one. Empty: all parameters are trained.
  std::vector<bool> frozen{};
};

// A tensor that one stage of a pipeline hands to its neighbour.
struct Border {
  Ref where;
  kernels::TensorDesc desc;
};

// What a plan consists of. The accessors of Plan say what each part is.
struct PlanParts {
  PlanOptions options;
  std::vector<PlanStep> fold{}, forward{}, loss{}, backward{}, weight_gradients{}, running_statistics{};
  Ref logits{}, logits_grad{};
  Border input{}, input_grad{}, output{}, output_grad{};
  std::size_t arena_bytes = 0, workspace_bytes = 0, folded_bytes = 0;
  int reorders = 0;
  std::vector<kernels::Layout> parameter_layouts{};
  std::vector<AllGather> backward_all_gathers{};  // one after each step of backward with ends_segment
};

}  // namespace dp::engine
