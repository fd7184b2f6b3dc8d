// Turns the fused nodes of a model into the steps of a Plan. Used by plan.cpp alone.
#pragma once

#include <string>
#include <vector>

#include "engine/fusion.h"
#include "engine/placement.h"
#include "engine/plan.h"

namespace dp::engine {

class PlanBuilder {
 public:
  PlanBuilder(Plan& plan, kernels::Context& context, const ParameterTable* table)
      : plan_(plan), context_(context), table_(table) {}

  void build(const Model& model);

 private:
  // A tensor in memory while the plan is being made. An activation's `where.offset` is its buffer's index until finish().
  struct Value {
    Ref where;
    kernels::TensorDesc desc;
  };
  // What backward needs of a node's forward.
  struct Saved {
    Value x, y, mask;
  };
  using Steps = std::vector<PlanStep>;

  kernels::TensorDesc any(const Shape& shape) const { return {shape, context_.compute_type(), {}}; }
  kernels::TensorDesc batched(const Shape& per_sample) const { return any(per_sample.prepended(plan_.options_.batch)); }
  kernels::TensorDesc parameter_desc(int entry) const;
  // The same tensor in the context's element type, row-major if that is another one.
  kernels::TensorDesc computed(const kernels::TensorDesc& desc) const;

  Value new_value(const kernels::TensorDesc& resolved);
  PlanStep& add(Steps& steps, const std::string& name, std::unique_ptr<kernels::Op> op,
                std::initializer_list<Ref> args);
  // `value` as `wanted` describes it: itself, or a reordered copy.
  Value as(Steps& steps, const std::string& reader, const Value& value, const kernels::TensorDesc& wanted);
  Value parameter(Steps& steps, const std::string& reader, int entry, const kernels::TensorDesc& wanted);

  Value forward_node(const Node& node, const Value& x, Saved& saved);
  Value forward_weighted(const Node& node, const Value& x);
  Value forward_pool(const Node& node, const Value& x, Saved& saved);
  Value backward_node(const Node& node, Value dy, const Saved& saved, bool needs_dx);
  Value backward_weighted(const Node& node, const Value& dy, const Saved& saved, bool needs_dx);
  void store_gradient(const std::string& name, int entry, const Value& gradient);
  // Where the op may write the gradient of `entry` at once, or a temporary that store_gradient() moves.
  Value gradient_target(int entry, const kernels::TensorDesc& produced);
  void cross_entropy(const Value& logits);
  void finish();

  Plan& plan_;
  kernels::Context& context_;
  const ParameterTable* table_;
  std::vector<Lifetime> buffers_;
  int step_ = 0;  // steps added so far, over all stages
};

}  // namespace dp::engine
