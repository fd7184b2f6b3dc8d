// Builds the steps of a Plan from the fused nodes of a model. Used only by plan.cpp.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/plan/fusion.h"
#include "engine/plan/norm_fusion.h"
#include "engine/plan/placement.h"
#include "engine/plan/plan.h"

namespace dp::engine {

class PlanBuilder {
 public:
  PlanBuilder(Plan& plan, kernels::Context& context, const ParameterTable* table, const NormTable& norms)
      : plan_(plan), context_(context), table_(table), norms_(norms) {}

  void build(const Model& model);

 private:
  // A tensor during planning. For an activation, `where.offset` is the index of its buffer until finish().
  struct Value {
    Ref where;
    kernels::TensorDesc desc;
  };
  // A node's result and the saved tensors for backward: x in the layout that the op read, and `saved` (a mask or
  // statistics).
  struct Result {
    Value x, y, saved;
    bool needs_gradient = false;
    bool deferred = false;  // normalisation: y is not stored; its reader computes it from x
    bool summed = false;    // normalisation: its gradient is already masked by ReLU and its sums are computed
    bool joined = false;    // the fused op of the previous node wrote y
    bool masked = false;    // its gradient is already masked by ReLU and multiplied by `scale`
    bool unpooled = false;  // pool: the incoming gradient is already that of the pool's input
    float scale = 1;        // ReLU fused with dropout: 1/(1-p)
  };
  // The gradient of a node's result: the sum of its readers' contributions. `owned`: no other step reads this memory
  // later, so it may be overwritten.
  struct Gradient {
    Value value;
    bool owned = true;
  };
  using Steps = std::vector<PlanStep>;

  static std::size_t index(int i) { return static_cast<std::size_t>(i); }
  // Descriptor of an activation or of the weights that a layer reads, in any layout.
  kernels::TensorDesc any(const Shape& shape) const { return {shape, context_.activation_type(), {}}; }
  kernels::TensorDesc any_full(const Shape& shape) const { return {shape, context_.compute_type(), {}}; }
  kernels::TensorDesc batched(const Shape& per_sample) const { return any(per_sample.prepended(plan_.options_.batch)); }
  bool mixed() const { return context_.activation_type() != context_.compute_type(); }
  kernels::TensorDesc parameter_desc(int entry) const;
  kernels::TensorDesc channels_desc(std::int64_t channels) const;
  // The same tensor in the activation type; row-major if the type changes.
  kernels::TensorDesc computed(const kernels::TensorDesc& desc) const;
  const Value& result_of(int node) const { return node < 0 ? input_ : results_[index(node)].y; }
  bool needs_gradient(int node) const {  // -1: the input
    return node < 0 ? plan_.options_.input.has_value() : results_[index(node)].needs_gradient;
  }

  // A statistic of all shards in the moments arena. `offset`: Norm::moments or Norm::sums.
  Ref all_shards(std::size_t offset) const {
    return {Space::moments, offset * static_cast<std::size_t>(plan_.options_.shards)};
  }
  // The entry of the shard that runs the step.
  Ref own_shard(std::size_t offset, std::size_t bytes) const {
    return {Space::moments, all_shards(offset).offset, bytes};
  }
  Ref own_moments(const Norm& norm) const { return own_shard(norm.moments, norm.moments_bytes()); }
  Ref own_sums(const Norm& norm) const { return own_shard(norm.sums, norm.sums_bytes()); }

  Value new_value(const kernels::TensorDesc& resolved);
  Value new_doubles(std::int64_t count);
  template <typename D>
  struct MadeOp {
    D desc;
    std::unique_ptr<kernels::Op> op;
    const std::vector<kernels::TensorDesc>& tensors() const { return op->tensors(); }
  };
  template <typename D>
  MadeOp<D> make(const D& desc) {
    return {desc, context_.make_op(desc)};
  }
  // `node` and `part` make the step's name. `part` is empty for the main op of a forward pass.
  template <typename D>
  void add(Steps& steps, const std::string& node, const std::string& part, MadeOp<D> made,
           const typename D::template Args<Ref>& args) {
    add(steps, node, part, std::move(made.desc), std::move(made.op), kernels::in_order<D, Ref>(args));
  }
  void add(Steps& steps, const std::string& node, const std::string& part, kernels::OpDesc desc,
           std::unique_ptr<kernels::Op> op, std::span<const Ref> args);
  // Returns `value` if it matches `wanted` (flattened if necessary), otherwise a reordered copy.
  Value as(Steps& steps, const std::string& reader, const Value& value, const kernels::TensorDesc& wanted);
  // The weights that a layer reads, in the `wanted` layout.
  Value parameter(Steps& steps, const std::string& reader, int entry, const kernels::TensorDesc& wanted);
  Ref parameter_place(int entry) const;
  Value weights(int entry) const;

  void forward_node(const Node& node, Result& result);
  void forward_weighted(const Node& node, const Value& x, Result& result);
  void forward_max_pool(const Node& node, const Value& x, Result& result);
  void forward_norm(const Node& node, const Value& x, Result& result);
  const Node* folded_norm(const Node& conv) const;  // the normalisation that is folded into the convolution, or null
  Value new_folded(const kernels::TensorDesc& desc);
  void forward_folded(const Node& conv, const Node& norm, const Value& x, Result& result);
  void forward_after_fold(const Node& norm, Result& result);
  void update_running();
  // The eps for statistics of this part alone; empty with synchronised batch normalisation.
  std::optional<double> eps_of_part(const Norm& norm) const {
    return plan_.options_.norm == BatchNormMode::sync ? std::nullopt : std::optional(norm.eps);
  }

  // In plan_fused.cpp.
  const NormNeighbours& neighbours_of(const Node& node) const {
    return neighbours_[static_cast<std::size_t>(&node - nodes_.data())];
  }
  bool takes_moments(const Node& conv) const;
  const Node* deferred_norm(const Node& conv) const;  // the normalisation that the convolution computes itself, or null
  bool sums_gradient(const Node& conv) const;         // conv also computes the gradient sums of the norm before it
  bool defers(const Node& norm, const kernels::TensorDesc& x);
  bool is_faster(const Node& conv, const kernels::NormConv2dForward& with, const kernels::NormConv2dForward& without);
  kernels::NormConv2dForward fused_forward(const Node& conv, const kernels::TensorDesc& x, bool norm) const;
  bool forward_fused(const Node& node, const Value& x, Result& result);  // false: no fusion
  kernels::NormConv2dBackwardWeights fused_backward_weights(const Node& node, const kernels::TensorDesc& x,
                                                            const kernels::TensorDesc& dy) const;
  void backward_data_and_sums(const Node& node, const Value& dy);

  // In plan_layers.cpp: layers fused with adjacent layers. Each function returns false if it does not fuse.
  int sole_reader(const Node& node) const;   // or -1
  int masked_input(const Node& node) const;  // the conv or linear node with ReLU that only `node` reads, or -1
  Value backward_weight(const Node& node, const kernels::TensorDesc& wanted);
  Value new_mask(const Value& pooled);
  bool forward_with_pool(const Node& conv, const Value& x, Result& result);
  bool forward_with_dropout(const Node& linear, const Value& x, Result& result);
  bool forward_with_loss(const Node& linear, const Value& x, Result& result);
  bool backward_with_mask(const Node& conv, const Value& dy, const Result& result);  // the data gradient
  bool backward_with_pool(const Node& linear, const Value& dy, const Result& result);
  bool backward_at_once(const Node& linear, const Value& dy, const Result& result);  // both gradients

  void backward_node(const Node& node, const Result& result, std::vector<Gradient> gradients);
  void backward_weighted(const Node& node, const Value& dy, const Result& result);
  void weight_gradients(const Node& node, const Value& dy, const Result& result);
  static Shape weight_shape(const Node& node);              // PyTorch's, of a convolution or linear layer
  kernels::TensorDesc read_by(const Result& result) const;  // x, as the gradients of a layer read it
  void backward_norm(const Node& node, const Result& result, std::vector<Gradient> gradients);
  // Called when the gradient sums are computed. `masks`: dz is dy, not yet masked by ReLU.
  void finish_norm(const Node& node, const Result& result, const Gradient& dz, bool masks);
  // Sums the readers' gradients, in the layout of the result.
  Gradient sum(const Node& node, const Result& result, std::vector<Gradient> gradients);
  // The destination of an elementwise op on `from`: in place if `from` is owned.
  Value in_place_or_new(const Gradient& from);
  void give(int node, const Value& gradient, bool owned);  // adds a summand to the gradient of `node`
  void finished(int weight, int bias);                     // marks the entries as final after the last added step
  void store_gradient(const std::string& name, int entry, const Value& gradient);
  // The destination of the gradient of `entry`: the gradient arena if the layout matches, otherwise a temporary that
  // store_gradient() reorders or accumulates.
  Value gradient_target(int entry, const kernels::TensorDesc& produced);
  void end_forward();  // logits and loss, or the output for the next stage
  void begin_backward();
  void end_backward();  // the gradient for the stage before this one, then the weight gradients if they are split off
  Border border(const Value& value, int last);  // keeps the memory of `value` up to step `last`
  void cross_entropy(const Value& logits);
  void finish();

  Plan& plan_;
  kernels::Context& context_;
  const ParameterTable* table_;
  const NormTable& norms_;
  Value input_;
  std::vector<Node> nodes_;
  std::vector<NormNeighbours> neighbours_;        // per node
  std::vector<Result> results_;                   // per node
  std::vector<std::vector<Gradient>> gradients_;  // per node: the summands so far
  std::vector<Gradient> input_gradients_;         // the same for the input
  std::vector<char> unfinished_;                  // per parameter entry: its gradient is not final
  Steps* gradient_steps_ = nullptr;               // to which gradients of parameters are added: backward or weights
  std::vector<std::function<void()>> later_;      // add the weight gradients that are split off
  std::vector<Lifetime> buffers_;
  int step_ = 0;  // number of steps so far, over all stages
};

}  // namespace dp::engine
