// The gradients of a plan: those of the nodes' results, which are sums over their readers, and those of the parameters.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/plan/plan_draft.h"

namespace dp::engine {

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
  void finished(int weight, int bias);    // marks the entries as final after the last added step
  PlanSteps& steps() { return *steps_; }  // to which gradients of parameters are added: backward or weights
  // With split_backward: `add` runs in end().
  void add_later(std::function<void()> add) { later_.push_back(std::move(add)); }

 private:
  PlanDraft& plan_;
  std::vector<std::vector<NodeGradient>> of_nodes_;  // per node: the summands so far
  std::vector<NodeGradient> of_input_;               // the same for the input
  std::vector<char> unfinished_;                     // per parameter entry: its gradient is not final
  PlanSteps* steps_ = nullptr;
  std::vector<std::function<void()>> later_;
};

}  // namespace dp::engine
