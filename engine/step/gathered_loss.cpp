#include "engine/step/gathered_loss.h"

#include "engine/step/worker.h"

namespace dp::engine {

using kernels::Range;

GatheredLoss::GatheredLoss(Worker& worker, const ModelSetup& setup)
    : worker_(worker), setup_(setup), part_bytes_(static_cast<std::size_t>(setup.replica_count())) {}

GatheredLoss::Sizes GatheredLoss::sizes(const ModelSetup& setup, std::int64_t rows) {
  return {static_cast<std::size_t>(rows * setup.model.output().numel()) * setup.element_bytes(),
          static_cast<std::size_t>(rows) * setup.target_bytes(true)};
}

std::unique_ptr<kernels::Op> GatheredLoss::make_op(const ModelSetup& setup, kernels::Context& context,
                                                   std::int64_t rows) {
  const std::int64_t outputs = setup.model.output().numel();
  if (const auto loss = setup.output_loss(/*training=*/true))
    return context.make_op(
        kernels::LossOfOutputs{*loss, rows, outputs, setup.scales_loss(), setup.options.sample_weights});
  return context.make_op(kernels::SoftmaxCrossEntropy{rows, outputs, setup.scales_loss()});
}

void GatheredLoss::reserve(std::int64_t rows) {
  const Sizes bytes = sizes(setup_, rows);
  if (logits_ != nullptr && logits_->bytes() >= bytes.logits) return;
  OpenDevice& device = worker_.device;
  device.compute().synchronize();
  for (const kernels::Buffer* old : {logits_.get(), grad_.get(), static_cast<kernels::Buffer*>(labels_.get())})
    if (old != nullptr) device.subtract_bytes(old->bytes(), &MemoryUse::other);
  logits_ = device.allocate(bytes.logits, &MemoryUse::other);
  grad_ = device.allocate(bytes.logits, &MemoryUse::other);
  labels_ = device.allocate(bytes.labels, &MemoryUse::other);
}

kernels::Op& GatheredLoss::op(std::int64_t rows) {
  for (const auto& [batch, op] : ops_)
    if (batch == rows) return *op;
  ops_.emplace_back(rows, make_op(setup_, worker_.context(), rows));
  kernels::Op& op = *ops_.back().second;
  worker_.device.ensure_size(workspace_, workspace_of(op), &MemoryUse::other);
  return op;
}

void GatheredLoss::upload_labels(const Batch& batch, Range rows) {
  if (worker_.rank() != 0 || rows.size() == 0) return;
  current_labels_ = worker_.targets_of(batch, rows.begin);
  if (worker_.context().host_accessible()) return;
  reserve(rows.size());
  worker_.compute().copy(labels_->data(), current_labels_,
                         static_cast<std::size_t>(rows.size()) * setup_.target_bytes(true));
  current_labels_ = labels_->data();
}

void GatheredLoss::gather_logits(std::int64_t rows) {
  if (setup_.replica_count() == 1) return;
  const Plan* plan = worker_.runner.plan_of(0);
  const auto rank = static_cast<std::size_t>(worker_.rank());
  const std::size_t row = static_cast<std::size_t>(setup_.model.output().numel()) * setup_.element_bytes();
  for (int r = 0; r < setup_.replica_count(); ++r)
    part_bytes_[static_cast<std::size_t>(r)] = static_cast<std::size_t>(setup_.rows_of_shard(rows, r).size()) * row;
  if (rank == 0) reserve(rows);
  worker_.compute_communicator->gather(plan ? worker_.runner.address(0, plan->logits()) : nullptr,
                                       rank == 0 ? logits_->data() : nullptr, part_bytes_, 0, worker_.compute());
}

void GatheredLoss::run(std::int64_t rows) {
  if (rows == 0) return;
  const Plan* plan = worker_.runner.plan_of(0);
  gather_logits(rows);
  const bool master = worker_.rank() == 0, alone = setup_.replica_count() == 1;
  if (master) {
    kernels::Op& loss = op(rows);
    void* const logits = alone ? worker_.runner.address(0, plan->logits()) : logits_->data();
    void* const grad = alone ? worker_.runner.address(0, plan->logits_grad()) : grad_->data();
    const auto run_as = [&]<typename Desc>(const Desc&) {
      kernels::run_op<Desc>(loss, worker_.compute(),
                            {.logits = logits,
                             .targets = const_cast<void*>(current_labels_),
                             .inputs = worker_.arenas.step_inputs(),
                             .dlogits = grad,
                             .results = worker_.arenas.step_results(),
                             .scaler = worker_.arenas.scaler()},
                            workspace_->data());
    };
    if (setup_.output_loss(/*training=*/true))
      run_as(kernels::LossOfOutputs{});
    else
      run_as(kernels::SoftmaxCrossEntropy{});
  }
  if (alone) return;
  worker_.compute_communicator->scatter(master ? grad_->data() : nullptr,
                                        plan ? worker_.runner.address(0, plan->logits_grad()) : nullptr, part_bytes_, 0,
                                        worker_.compute());
}

}  // namespace dp::engine
