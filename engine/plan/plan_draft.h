// A plan while it is built: the nodes of the model, their results so far, and the steps with their buffers. Used only
// by PlanBuilder and the classes that it consists of.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/plan/fusion.h"
#include "engine/plan/norm_fusion.h"
#include "engine/plan/placement.h"
#include "engine/plan/plan.h"

namespace dp::engine {

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
  return node.kind == NodeKind::conv ? Shape{node.output[0], node.input[0], node.window.kernel, node.window.kernel}
                                     : Shape{node.output[0], node.input.numel()};
}

template <typename D>
struct MadeOp {
  D desc;
  std::unique_ptr<kernels::Op> op;
  const std::vector<kernels::TensorDesc>& tensors() const { return op->tensors(); }
};

struct PlanDraft : PlanParts {
  PlanDraft(const PlanOptions& of_plan, kernels::Context& of_device, const ParameterTable* of_model,
            const NormTable& of_norms)
      : PlanParts{.options = of_plan}, context(of_device), table(of_model), norms(of_norms) {}

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
  int number_of(const Node& node) const { return static_cast<int>(&node - nodes.data()); }
  int sole_reader(const Node& node) const;  // or -1
  const NormNeighbours& neighbours_of(const Node& node) const { return neighbours[index(number_of(node))]; }
  const Node* folded_norm(const Node& conv) const;  // the normalisation that is folded into the convolution, or null

  // A statistic of all shards in the moments arena. `offset`: Norm::moments or Norm::sums.
  Ref all_shards(std::size_t offset) const {
    return {Space::moments, offset * static_cast<std::size_t>(options.shards)};
  }
  // The entry of the shard that runs the step.
  Ref own_moments(const Norm& norm) const { return own_shard(norm.moments, norm.moments_bytes()); }
  Ref own_sums(const Norm& norm) const { return own_shard(norm.sums, norm.sums_bytes()); }
  Ref own_shard(std::size_t offset, std::size_t bytes) const {
    return {Space::moments, all_shards(offset).offset, bytes};
  }
  // The eps for statistics of this part alone; empty with synchronised batch normalisation.
  std::optional<double> eps_of_part(const Norm& norm) const {
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
  // The weights that a layer reads, in the `wanted` layout.
  PlanValue parameter(PlanSteps& steps, const std::string& reader, int entry, const kernels::TensorDesc& wanted);

  void place_buffers();  // the last step of planning

  kernels::Context& context;
  const ParameterTable* const table;
  const NormTable& norms;
  PlanValue images;  // what the first nodes read: images, or the output of the stage before this one
  std::vector<Node> nodes;
  std::vector<NormNeighbours> neighbours;  // per node
  std::vector<NodeResult> results;         // per node
  std::vector<Lifetime> buffers;
  int steps_so_far = 0;  // over all stages
};

}  // namespace dp::engine
