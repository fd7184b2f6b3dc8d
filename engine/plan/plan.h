// The execution plan of a model on one device at one batch size: fused steps in order, with all buffers placed in
// advance. A plan contains ops and offsets; the replica owns the memory.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "dp/model.h"
#include "engine/layers/nodes.h"
#include "engine/layers/parameters.h"
#include "engine/layers/plan_parts.h"

namespace dp::engine {

class Plan {
 public:
  // If `table` is null, the forward ops choose the parameter layouts: see parameter_layouts(). Such a plan cannot run.
  Plan(const Model& model, kernels::Context& context, const PlanOptions& options, const ParameterTable* table,
       const NormTable& norms);

  const PlanOptions& options() const { return parts_.options; }
  // Evaluation: computes the plan's own weights, reordered or with folded normalisations. If weights or running
  // statistics have changed, run it before input() is written and before forward().
  const std::vector<PlanStep>& fold() const { return parts_.fold; }
  std::size_t folded_bytes() const { return parts_.folded_bytes; }  // of Space::folded
  const std::vector<PlanStep>& forward() const { return parts_.forward; }
  const std::vector<PlanStep>& loss() const { return parts_.loss; }  // cross-entropy of this replica's rows
  const std::vector<PlanStep>& backward() const { return parts_.backward; }
  // With options().split_backward: the gradients of weights, after backward().
  const std::vector<PlanStep>& weight_gradients() const { return parts_.weight_gradients; }
  // Updates the running statistics from the statistics of this batch. Only the master runs it, for its first shard.
  const std::vector<PlanStep>& running_statistics() const { return parts_.running_statistics; }
  // The all-gathers of gradient sums, with synchronised normalisation: one after each step of backward() that ends a
  // segment.
  const std::vector<AllGather>& backward_all_gathers() const { return parts_.backward_all_gathers; }
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

// The all-gathers of statistics in a stage's forward pass, in order.
std::vector<AllGather> forward_all_gathers(const NormTable& norms, int shards);

}  // namespace dp::engine
