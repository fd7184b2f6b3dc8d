// How one device runs a model at one batch size: fused steps in order, every buffer placed ahead of time.
// A plan holds ops and offsets; the memory is the replica's.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dp/model.h"
#include "dp/parallel_options.h"
#include "engine/plan/norms.h"
#include "engine/plan/parameters.h"
#include "kernels/backend.h"

namespace dp::engine {

enum class Space : std::uint8_t {
  none,
  activation,
  value,
  low_value,  // the values in the activations' type, with mixed precision
  gradient,
  buffer,   // running statistics
  moments,  // statistics of a step's parts
  input,
  labels,
  samples,
  step_inputs,
  step_results,
  loss_scaler,
  count
};

// A place in one of the replica's memories.
struct Ref {
  Space space = Space::none;
  std::size_t offset = 0;       // bytes
  std::size_t part_stride = 0;  // moments: bytes from one part's place to the next one's
};

// Bytes of the moments arena that hold the same statistics of every part; complete on each replica once gathered.
struct Gather {
  std::size_t offset = 0, part_bytes = 0;
};

struct PlanStep {
  std::string name;  // node and op, "conv2+relu conv2d_forward"
  std::unique_ptr<kernels::Op> op;
  std::array<Ref, kernels::kMaxOpArgs> args{};
  int arg_count = 0;
  int ready_from = -1;   // backward: gradients of all entries >= this are final, and their weights no longer read
  bool gathers = false;  // the steps after this one read what every part has written: the next of the stage's gathers
};

struct PlanOptions {
  std::int64_t batch = 1;  // rows of this replica
  bool training = true;
  bool accumulate = false;  // gradients are added to those of earlier micro-batches
  bool dropout = true;
  BatchNormMode norm = BatchNormMode::master;
  bool scales_loss = false;  // the gradient is that of the loss times LossScaler::scale
  bool joins_loss =
      false;  // training: one op may make logits and loss; logits are there after loss(), not after forward()
};

class Plan {
 public:
  // With `table` null the parameters lie as the forward ops like best: parameter_layouts() then tells how.
  Plan(const Model& model, kernels::Context& context, const PlanOptions& options, const ParameterTable* table,
       const NormTable& norms);

  const PlanOptions& options() const { return options_; }
  const std::vector<PlanStep>& forward() const { return forward_; }
  const std::vector<PlanStep>& loss() const { return loss_; }  // cross-entropy of this replica's rows
  const std::vector<PlanStep>& backward() const { return backward_; }
  // Updates the running statistics from this step's; for one replica and part.
  const std::vector<PlanStep>& running() const { return running_; }
  Ref logits() const { return logits_; }  // row-major (batch, classes) of the compute type, alive until backward starts
  Ref logits_grad() const { return logits_grad_; }  // the same shape; what backward reads

  std::size_t arena_bytes() const { return arena_bytes_; }          // activations, gradients of activations
  std::size_t workspace_bytes() const { return workspace_bytes_; }  // shared by all steps, at the arena's end
  int reorders() const { return reorders_; }                        // copies that only change a layout or a type
  const std::vector<kernels::Layout>& parameter_layouts() const { return parameter_layouts_; }
  // What a step enqueues: see Context::kernels_of.
  using KernelsOf = std::function<std::vector<std::string>(const PlanStep&)>;
  std::string describe(const KernelsOf& kernels_of = {}) const;

 private:
  friend class PlanBuilder;
  PlanOptions options_;
  std::vector<PlanStep> forward_, loss_, backward_, running_;
  Ref logits_, logits_grad_;
  std::size_t arena_bytes_ = 0, workspace_bytes_ = 0;
  int reorders_ = 0;
  std::vector<kernels::Layout> parameter_layouts_;
};

// What is gathered in a stage, in order; empty but for synchronised batch normalisation. The same for every plan, so that a
// replica without rows takes part.
std::vector<Gather> forward_gathers(const NormTable& norms);
std::vector<Gather> backward_gathers(const NormTable& norms);

}  // namespace dp::engine
