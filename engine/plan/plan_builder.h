// Turns the fused nodes of a model into the steps of a Plan. Used by plan.cpp alone.
#pragma once

#include <optional>
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
  // A tensor in memory while the plan is being made. An activation's `where.offset` is its buffer's index until finish().
  struct Value {
    Ref where;
    kernels::TensorDesc desc;
  };
  // A node's result, and what backward needs of its forward: x as the op read it, what it noted down (a mask, statistics).
  struct Result {
    Value x, y, saved;
    bool needs_gradient = false;
    bool deferred = false;  // of a normalisation: y is nowhere, its reader makes it of x
    bool summed = false;    // ...: its gradient comes with ReLU's mask and the sums
    bool joined = false;    // an op of the node before wrote y
    bool masked = false;    // its gradient comes with ReLU's mask, and what `scale` stands for
    bool unpooled = false;  // of a pool: its gradient comes as that of what was pooled
    float scale = 1;        // of a ReLU: that of the dropout joined to it
  };
  // The gradient of a node's result: the sum of what its readers gave. `owned`: nobody else reads that memory later.
  struct Gradient {
    Value value;
    bool owned = true;
  };
  using Steps = std::vector<PlanStep>;

  static std::size_t index(int i) { return static_cast<std::size_t>(i); }
  // An activation, or the weights that a layer reads.
  kernels::TensorDesc any(const Shape& shape) const { return {shape, context_.activation_type(), {}}; }
  kernels::TensorDesc any_full(const Shape& shape) const { return {shape, context_.compute_type(), {}}; }
  kernels::TensorDesc batched(const Shape& per_sample) const { return any(per_sample.prepended(plan_.options_.batch)); }
  bool mixed() const { return context_.activation_type() != context_.compute_type(); }
  kernels::TensorDesc parameter_desc(int entry) const;
  kernels::TensorDesc channels_desc(std::int64_t channels) const;
  // The same tensor in the activations' type, row-major if that is another one.
  kernels::TensorDesc computed(const kernels::TensorDesc& desc) const;
  const Value& result_of(int node) const { return node < 0 ? input_ : results_[index(node)].y; }
  bool needs_gradient(int node) const { return node >= 0 && results_[index(node)].needs_gradient; }

  // One part's place among those of all.
  static Ref own_moments(const Norm& norm) { return {Space::moments, norm.moments, norm.moments_bytes()}; }
  static Ref own_sums(const Norm& norm) { return {Space::moments, norm.sums, norm.sums_bytes()}; }

  Value new_value(const kernels::TensorDesc& resolved);
  Value new_doubles(std::int64_t count);
  PlanStep& add(Steps& steps, const std::string& name, std::unique_ptr<kernels::Op> op,
                std::initializer_list<Ref> args);
  // `value` as `wanted` describes it, flattened or not: itself, or a reordered copy.
  Value as(Steps& steps, const std::string& reader, const Value& value, const kernels::TensorDesc& wanted);
  // The weights that a layer reads.
  Value parameter(Steps& steps, const std::string& reader, int entry, const kernels::TensorDesc& wanted);
  Ref parameter_place(int entry) const;
  Value weights(int entry) const;

  void forward_node(const Node& node, Result& result);
  void forward_weighted(const Node& node, const Value& x, Result& result);
  void forward_max_pool(const Node& node, const Value& x, Result& result);
  void forward_norm(const Node& node, const Value& x, Result& result);
  void update_running();
  // Of a normalisation by the statistics of this part alone.
  std::optional<double> eps_of_part(const Norm& norm) const {
    return plan_.options_.norm == BatchNormMode::sync ? std::nullopt : std::optional(norm.eps);
  }

  // In plan_fused.cpp.
  const NormNeighbours& neighbours_of(const Node& node) const {
    return neighbours_[static_cast<std::size_t>(&node - nodes_.data())];
  }
  bool takes_moments(const Node& conv) const;
  const Node* deferred_norm(const Node& conv) const;  // whose result the convolution makes itself, or null
  bool sums_gradient(const Node& conv) const;         // of the normalisation before it
  bool defers(const Node& norm, const kernels::TensorDesc& x);
  bool is_faster(const Node& conv, const kernels::NormConv2dForward& with, const kernels::NormConv2dForward& without);
  kernels::NormConv2dForward fused_forward(const Node& conv, const kernels::TensorDesc& x, bool norm) const;
  bool forward_fused(const Node& node, const Value& x, Result& result);  // false: nothing to fuse
  std::unique_ptr<kernels::Op> fused_backward_weights(const Node& node, const kernels::TensorDesc& x,
                                                      const kernels::TensorDesc& dy);
  void backward_data_and_sums(const Node& node, const Value& dy);

  // In plan_layers.cpp: layers with what is beside them in one op. Each returns false where that is not to be.
  int sole_reader(const Node& node) const;   // or -1
  int masked_input(const Node& node) const;  // the layer with a ReLU whose result only `node` reads, or -1
  Value backward_weight(const Node& node, const kernels::TensorDesc& wanted);
  Value new_mask(const Value& pooled);
  bool forward_with_pool(const Node& conv, const Value& x, Result& result);
  bool forward_with_dropout(const Node& linear, const Value& x, Result& result);
  bool forward_with_loss(const Node& linear, const Value& x, Result& result);
  bool backward_with_mask(const Node& conv, const Value& dy, const Result& result);  // the data gradient
  bool backward_with_pool(const Node& linear, const Value& dy, const Result& result);
  bool backward_at_once(const Node& linear, const Value& dy, const Result& result);  // both gradients

  void backward_all(const Value& logits_grad);
  void backward_node(const Node& node, const Result& result, std::vector<Gradient> gradients);
  void backward_weighted(const Node& node, const Value& dy, const Result& result);
  void backward_norm(const Node& node, const Result& result, std::vector<Gradient> gradients);
  // With the sums there. `masks`: dz is dy, not yet masked by ReLU.
  void finish_norm(const Node& node, const Result& result, const Gradient& dz, bool masks);
  // One gradient of what the readers gave, in the layout of the result.
  Gradient sum(const Node& node, const Result& result, std::vector<Gradient> gradients);
  // A place for what an op computes from `from` alone, element by element: in place where that is allowed.
  Value in_place_or_new(const Gradient& from);
  void give(int node, const Value& gradient, bool owned);  // to a node's readers' sum
  void finished(int weight, int bias);                     // with these entries, after the step added last
  void store_gradient(const std::string& name, int entry, const Value& gradient);
  // Where the op may write the gradient of `entry` at once, or a temporary that store_gradient() moves.
  Value gradient_target(int entry, const kernels::TensorDesc& produced);
  void cross_entropy(const Value& logits);
  void finish();

  Plan& plan_;
  kernels::Context& context_;
  const ParameterTable* table_;
  const NormTable& norms_;
  Value input_;
  std::vector<Node> nodes_;
  std::vector<NormNeighbours> neighbours_;        // of the nodes
  std::vector<Result> results_;                   // of the nodes
  std::vector<std::vector<Gradient>> gradients_;  // of the results, while backward is being made
  std::vector<char> unfinished_;                  // of the entries
  std::vector<Lifetime> buffers_;
  int step_ = 0;  // steps added so far, over all stages
};

}  // namespace dp::engine
