// A replica of a small network on a device of its own, and steps that run any function.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "engine/step/replica.h"
#include "kernels/device/host/host_context.h"

namespace dp::test {

inline Model block() {
  ModelBuilder m("block", Shape{2, 4, 4});
  auto x = m.conv2d("conv", m.input(), {.out_channels = 3, .kernel = 1, .bias = false});
  x = m.dropout("dropout", m.relu(m.batch_norm2d("bn", x)), 0.5f);
  return m.build(m.linear("fc", m.flatten(x), {.out_features = 5}));
}

// A replica on the reference device, or on one that the test opens.
class Single {
 public:
  explicit Single(const engine::ReplicaOptions& options, const kernels::ContextOptions& device = {})
      : Single(options, kernels::backend(DeviceKind::reference).open({DeviceKind::reference, 0}, device)) {}
  Single(const engine::ReplicaOptions& options, std::unique_ptr<kernels::Context> context)
      : model_(block()),
        norms_(model_),
        context_(std::move(context)),
        table_(model_, engine::Plan(model_, *context_, {.batch = 2}, nullptr, norms_).parameter_layouts(),
               context_->compute_type()),
        sizes_(engine::Arenas::sizes(table_, norms_, *context_, options)),
        replica_(model_, std::move(context_), table_, norms_, options) {}
  engine::Replica& operator*() { return replica_; }
  engine::Replica* operator->() { return &replica_; }
  const engine::ParameterTable& table() const { return table_; }
  const engine::NormTable& norms() const { return norms_; }
  const engine::Arenas::Sizes& sizes() const { return sizes_; }

 private:
  Model model_;
  engine::NormTable norms_;
  std::unique_ptr<kernels::Context> context_;
  engine::ParameterTable table_;
  engine::Arenas::Sizes sizes_;
  engine::Replica replica_;
};

// An op without arguments.
class PlainOp final : public kernels::HostOp {
 public:
  explicit PlainOp(std::function<void()> work) : work_(std::move(work)) {}
  void execute(std::span<void* const>, void*) override { work_(); }

 private:
  std::function<void()> work_;
};

inline std::vector<engine::PlanStep> step_of(std::function<void()> work) {
  std::vector<engine::PlanStep> steps;
  steps.push_back({.name = "layer op", .node = "layer", .desc = kernels::Fill{}, .op = {}});
  steps.back().op = std::make_unique<PlainOp>(std::move(work));
  return steps;
}

}  // namespace dp::test
