// A plan while it is built, as the rules of the layers see it (layers.h): the nodes of the model, their results and
// gradients so far, and the steps with their buffers.
#pragma once

#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/layers/nodes.h"
#include "engine/layers/parameters.h"
#include "engine/layers/plan_parts.h"

namespace dp::engine {

// Static placement of buffers in one arena: buffers share memory if their lifetimes do not overlap.

struct Lifetime {
  std::size_t bytes = 0;
  int first = 0, last = 0;  // steps, inclusive
  std::size_t offset = 0;   // result, a multiple of 64
};

// Sets all offsets and returns the arena size in bytes. Places the largest buffer first, each into the lowest gap that
// fits.
std::size_t place(std::vector<Lifetime>& buffers);

// A tensor during planning. For an activation, `where.offset` is the index of its buffer until place_buffers().
struct PlanValue {
  Ref where;
  kernels::TensorDesc desc;
};

// A node's result and the saved tensors for backward: x in the layout that the op read, and `saved` (a mask or
// statistics).
struct NodeResult {
  PlanValue x, y, saved;
  bool needs_gradient = false;
  bool deferred = false;  // normalisation: y is not stored; its reader computes it from x
  bool summed = false;    // normalisation: its gradient is already masked by ReLU and its sums are computed
  bool joined = false;    // the fused op of the previous node wrote y
  bool masked = false;    // its gradient is already masked by ReLU and multiplied by `scale`
  bool unpooled = false;  // pool: the incoming gradient is already that of the pool's input
  float scale = 1;        // ReLU fused with dropout: 1/(1-p)
};

using PlanSteps = std::vector<PlanStep>;

inline std::size_t index(int i) { return static_cast<std::size_t>(i); }

// PyTorch's shape of the weights of a convolution or linear layer.
inline Shape weight_shape(const Node& node) {
  const HW& kernel = node.window.kernel;
  if (node.kind == NodeKind::conv_transpose) return {node.input[0], node.output[0] / node.groups, kernel.h, kernel.w};
  if (node.kind != NodeKind::conv) return {node.output[0], node.input.numel()};
  return {node.output[0], node.input[0] / node.groups, kernel.h, kernel.w};
}

template <typename D>
struct MadeOp {
  D desc;
  std::unique_ptr<kernels::Op> op;
  const std::vector<kernels::TensorDesc>& tensors() const { return op->tensors(); }
};

// Where the statistics of batch normalisations are in the moments arena.
struct StatisticPlaces {
  // A statistic of all shards. `offset`: Norm::moments or Norm::sums.
  Ref of_all(std::size_t offset) const { return {Space::moments, offset * static_cast<std::size_t>(shards)}; }
  // The entry of the shard that runs the step.
  Ref own_moments(const Norm& norm) const { return own(norm.moments, norm.moments_bytes()); }
  Ref own_sums(const Norm& norm) const { return own(norm.sums, norm.sums_bytes()); }
  Ref own(std::size_t offset, std::size_t bytes) const { return {Space::moments, of_all(offset).offset, bytes}; }

  int shards;
};

struct PlanDraft : PlanParts {
  PlanDraft(const PlanOptions& of_plan, kernels::Context& of_device, const ParameterTable* of_model,
            const NormTable& of_norms)
      : PlanParts{.options = of_plan},
        context(of_device),
        table(of_model),
        norms(of_norms),
        statistics{of_plan.shards} {}

  // Descriptors. `any`: in the activation type, of an activation or of the weights that a layer reads, in any layout.
  kernels::TensorDesc any(const Shape& shape) const { return {shape, context.activation_type(), {}}; }
  kernels::TensorDesc any_full(const Shape& shape) const { return {shape, context.compute_type(), {}}; }
  kernels::TensorDesc batched(const Shape& per_sample) const { return any(per_sample.prepended(options.batch)); }
  // In the activation type; in any layout if the type changes.
  kernels::TensorDesc activation_desc(const kernels::TensorDesc& x) const {
    return x.type == context.activation_type() ? x : any(x.shape);
  }
  // The same, but row-major if the type changes.
  kernels::TensorDesc computed(const kernels::TensorDesc& desc) const;
  kernels::TensorDesc parameter_desc(int entry) const;
  kernels::TensorDesc channels_desc(std::int64_t channels) const;
  bool mixed() const { return context.activation_type() != context.compute_type(); }

  // Nodes.
  const PlanValue& result_of(int node) const { return node < 0 ? images : results[index(node)].y; }
  bool needs_gradient(int node) const {  // -1: the input
    return node < 0 ? options.input.has_value() : results[index(node)].needs_gradient;
  }
  bool trains(const Node& node) const {  // whether the gradient of one of its parameters is computed
    const auto trained = [&](int entry) {
      return entry >= 0 && (options.frozen.empty() || !options.frozen[index(entry)]);
    };
    return trained(node.weight) || trained(node.bias);
  }
  int number_of(const Node& node) const { return static_cast<int>(&node - nodes.data()); }
  int sole_reader(const Node& node) const;  // or -1
  const NormNeighbours& neighbours_of(const Node& node) const { return neighbours[index(number_of(node))]; }
  const Node* folded_norm(const Node& conv) const;  // the normalisation that is folded into the convolution, or null

  // The eps for statistics of this shard alone; empty with synchronised batch normalisation.
  std::optional<double> eps_of_shard(const Norm& norm) const {
    return options.norm == BatchNormMode::sync ? std::nullopt : std::optional(norm.eps);
  }

  // Values.
  PlanValue new_value(const kernels::TensorDesc& resolved);
  PlanValue new_doubles(std::int64_t count);
  PlanValue new_mask(const PlanValue& pooled);
  PlanValue layer_weights(int entry) const;  // in the activation type
  Ref parameter_place(int entry) const;
  Border border(const PlanValue& value, int last);  // keeps the memory of `value` up to step `last`

  // Steps.
  template <typename D>
  MadeOp<D> make(const D& desc) {
    return {desc, context.make_op(desc)};
  }
  // `node` and `part` make the step's name. `part` is empty for the main op of a forward pass.
  template <typename D>
  void add(PlanSteps& steps, const std::string& node, const std::string& part, MadeOp<D> made,
           const typename D::template Args<Ref>& args) {
    add(steps, node, part, std::move(made.desc), std::move(made.op), kernels::in_order<D, Ref>(args));
  }
  void add(PlanSteps& steps, const std::string& node, const std::string& part, kernels::OpDesc desc,
           std::unique_ptr<kernels::Op> op, std::span<const Ref> args);
  // Returns `value` if it matches `wanted` (flattened if necessary), otherwise a reordered copy.
  PlanValue as(PlanSteps& steps, const std::string& reader, const PlanValue& value, const kernels::TensorDesc& wanted);
  // The weights that a layer reads, in the `wanted` layout. An evaluation keeps reordered ones until weights change.
  PlanValue parameter(PlanSteps& steps, const std::string& reader, int entry, const kernels::TensorDesc& wanted);

  void place_buffers();  // the last step of planning

  kernels::Context& context;
  const ParameterTable* const table;
  const NormTable& norms;
  const StatisticPlaces statistics;
  PlanValue images;  // what the first nodes read: images, or the output of the stage before this one
  std::vector<Node> nodes;
  std::vector<NormNeighbours> neighbours;  // per node
  std::vector<NodeResult> results;         // per node
  std::vector<Lifetime> buffers;
  int steps_so_far = 0;  // over all stages
};

// The gradients of a plan: those of the nodes' results, which are sums over their readers, and those of the parameters.

// The gradient of a node's result: the sum of its readers' contributions. `owned`: no other step reads this memory
// later, so it may be overwritten.
struct NodeGradient {
  PlanValue value;
  bool owned = true;
};

class PlanGradients {
 public:
  explicit PlanGradients(PlanDraft& plan) : plan_(plan) {}

  void begin(std::size_t parameters);  // after the last step of forward and loss
  void end();  // the gradient for the stage before this one, then the weight gradients if they are split off

  // Results of nodes.
  void give(int node, const PlanValue& gradient, bool owned);  // adds a summand to the gradient of `node`
  std::vector<NodeGradient>& summands(int node) { return of_nodes_[index(node)]; }
  // Sums the summands, in the layout of the result.
  NodeGradient sum(const Node& node, const NodeResult& result, std::vector<NodeGradient> gradients);
  // The destination of an elementwise op on `from`: in place if `from` is owned.
  PlanValue in_place_or_new(const NodeGradient& from);

  // Parameters.
  PlanValue weight_of(const Node& node, const kernels::TensorDesc& wanted);  // as the data gradient reads it
  // The destination of the gradient of `entry`: the gradient arena if the layout matches, otherwise a temporary that
  // store() reorders or accumulates.
  PlanValue target(int entry, const kernels::TensorDesc& produced);
  void store(const std::string& name, int entry, const PlanValue& gradient);
  // Call it after adding the step that computes the gradient sums of this normalisation. With synchronised
  // normalisation an all-gather of the sums follows that step.
  void end_sums(const Norm& norm);
  void finished(int weight, int bias);    // marks the entries as final after the last added step
  PlanSteps& steps() { return *steps_; }  // to which gradients of parameters are added: backward or weights
  // Calls `add`, which adds the steps of the node's weight gradients, unless the weights are frozen. With
  // split_backward, end() calls it and then marks the gradients as final.
  void of_weights(const Node& node, std::function<void()> add);

 private:
  PlanDraft& plan_;
  std::vector<std::vector<NodeGradient>> of_nodes_;  // per node: the summands so far
  std::vector<NodeGradient> of_input_;               // the same for the input
  std::vector<char> unfinished_;                     // per parameter entry: its gradient is computed, and not final
  PlanSteps* steps_ = nullptr;
  std::vector<std::function<void()>> later_;
};

// Memory for weights of the plan's own, which `plan.fold` computes.
PlanValue new_folded(PlanDraft& plan, const kernels::TensorDesc& resolved);

struct Planner : PlanDraft {
  using PlanDraft::PlanDraft;
  Planner(const Planner&) = delete;  // gradients refers to it
  PlanGradients gradients{*this};
};

}  // namespace dp::engine
