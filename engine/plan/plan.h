// The execution plan of a model on one device at one batch size: fused steps in order, with all buffers placed in
// advance. A plan contains ops and offsets; the replica owns the memory.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dp/model.h"
#include "dp/parallel_options.h"
#include "engine/plan/norms.h"
#include "engine/plan/parameters.h"
#include "kernels/op_args.h"

namespace dp::engine {

enum class Space : std::uint8_t {
  none,
  activation,
  value,
  low_value,  // mixed precision: values in the activation type
  folded,     // evaluation: the plan's own weights and biases of convolutions with a folded normalisation
  gradient,
  buffer,   // running statistics
  moments,  // batch statistics of all parts
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
  std::size_t offset = 0;       // bytes
  std::size_t part_stride = 0;  // moments: stride between parts, in bytes
};

// A range of the moments arena with one statistic of all parts. The all-gather completes it on every replica.
struct Gather {
  std::size_t offset = 0, part_bytes = 0;
};

struct PlanStep {
  std::string name;  // node and op, "conv2+relu backward_data"; forward: the node alone
  std::string node;  // "conv2+relu"
  kernels::OpDesc desc;
  std::unique_ptr<kernels::Op> op;  // made from desc
  std::array<Ref, kernels::kMaxOpArgs> args{};
  int arg_count = 0;
  int ready_from = -1;   // backward: gradients of entries >= this are final; backward no longer reads their weights
  bool gathers = false;  // later steps read data of all parts: the stage's next Gather follows this step
};

struct PlanOptions {
  std::int64_t batch = 1;  // rows of this replica's shard
  bool training = true;
  bool accumulate = false;  // gradients are added to those of earlier micro-batches
  bool dropout = true;
  BatchNormMode norm = BatchNormMode::master;
  bool scales_loss = false;  // gradients are multiplied by LossScaler::scale
  // Training: one op may compute logits and loss. The logits are then valid after loss(), not after forward().
  bool joins_loss = false;
  int shards = 1;  // of the batch, over all replicas
  // For a stage of a pipeline. The first stage reads images and has no `input`. Every other stage reads the previous
  // stage's output, which has the type and layout of `input`, and computes its gradient. The last stage computes the
  // loss.
  std::optional<kernels::TensorDesc> input{};
  bool last = true;
  // The weight gradients of convolutions and linear layers are computed by weights(), not by backward().
  bool split_backward = false;
  bool folds_norms = false;  // evaluation: folds batch normalisations into the convolutions before them
};

// A tensor that one stage of a pipeline hands to its neighbour.
struct Border {
  Ref where;
  kernels::TensorDesc desc;
};

// What a plan consists of. The accessors of Plan say what each part is.
struct PlanParts {
  PlanOptions options;
  std::vector<PlanStep> fold{}, forward{}, loss{}, backward{}, weights{}, running{};
  Ref logits{}, logits_grad{};
  Border input{}, input_grad{}, output{}, output_grad{};
  std::size_t arena_bytes = 0, workspace_bytes = 0, folded_bytes = 0;
  int reorders = 0;
  std::vector<kernels::Layout> parameter_layouts{};
};

class Plan {
 public:
  // If `table` is null, the forward ops choose the parameter layouts: see parameter_layouts(). Such a plan cannot run.
  Plan(const Model& model, kernels::Context& context, const PlanOptions& options, const ParameterTable* table,
       const NormTable& norms);

  const PlanOptions& options() const { return parts_.options; }
  // With options().folds_norms: computes the folded weights. If weights or running statistics have changed, run it
  // before input() is written and before forward().
  const std::vector<PlanStep>& fold() const { return parts_.fold; }
  std::size_t folded_bytes() const { return parts_.folded_bytes; }  // of Space::folded
  const std::vector<PlanStep>& forward() const { return parts_.forward; }
  const std::vector<PlanStep>& loss() const { return parts_.loss; }  // cross-entropy of this replica's rows
  const std::vector<PlanStep>& backward() const { return parts_.backward; }
  const std::vector<PlanStep>& weights() const {
    return parts_.weights;
  }  // after backward(), with options().split_backward
  // Updates the running statistics from the batch statistics of this step. Only the replica with part 0 runs it.
  const std::vector<PlanStep>& running() const { return parts_.running; }
  Ref logits() const { return parts_.logits; }  // row-major (batch, classes), compute type; valid until backward starts
  Ref logits_grad() const { return parts_.logits_grad; }  // same shape; input of backward
  // A stage of a pipeline. Before forward(), input() must hold the output() of the stage before this one. After it,
  // output() is valid until backward has started. Before backward(), output_grad() must hold the next stage's
  // input_grad(), which is valid after that stage's backward.
  const Border& input() const { return parts_.input; }              // if options().input is set
  const Border& input_grad() const { return parts_.input_grad; }    // the same
  const Border& output() const { return parts_.output; }            // unless options().last
  const Border& output_grad() const { return parts_.output_grad; }  // the same

  std::size_t arena_bytes() const { return parts_.arena_bytes; }          // activations and their gradients
  std::size_t workspace_bytes() const { return parts_.workspace_bytes; }  // shared by all steps; at the arena's end
  int reorders() const { return parts_.reorders; }                        // copies that change only layout or type
  const std::vector<kernels::Layout>& parameter_layouts() const { return parts_.parameter_layouts; }
  // Kernels that a step enqueues: see Context::kernels_of.
  using KernelsOf = std::function<std::vector<std::string>(const PlanStep&)>;
  std::string describe(const KernelsOf& kernels_of = {}) const;

 private:
  PlanParts parts_;
};

// The gathers of a stage, in order. Used with synchronised batch normalisation only. They are the same for every plan,
// because a replica without rows also takes part.
std::vector<Gather> forward_gathers(const NormTable& norms, int shards);
std::vector<Gather> backward_gathers(const NormTable& norms, int shards);

}  // namespace dp::engine
