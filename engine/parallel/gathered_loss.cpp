#include "engine/parallel/gathered_loss.h"

namespace dp::engine {

using kernels::Range;

GatheredLoss::GatheredLoss(ReplicaSet& team)
    : team_(team),
      setup_(team.setup),
      part_bytes_(team.replicas.size(), std::vector<std::size_t>(static_cast<std::size_t>(setup_.size()))) {}

GatheredLoss::Sizes GatheredLoss::sizes(const ModelSetup& setup, std::int64_t rows) {
  return {static_cast<std::size_t>(rows * setup.model.output().numel()) * setup.element_bytes(),
          static_cast<std::size_t>(rows) * sizeof(std::int32_t)};
}

std::unique_ptr<kernels::Op> GatheredLoss::make_op(const ModelSetup& setup, kernels::Context& context,
                                                   std::int64_t rows) {
  return context.make_op(kernels::SoftmaxCrossEntropy{rows, setup.model.output().numel(), setup.scales_loss()});
}

void GatheredLoss::reserve(std::int64_t rows) {
  const Sizes bytes = sizes(setup_, rows);
  if (logits_ != nullptr && logits_->bytes() >= bytes.logits) return;
  Replica& master = *team_.replicas.front();
  master.compute().synchronize();
  for (const kernels::Buffer* old : {logits_.get(), grad_.get(), static_cast<kernels::Buffer*>(labels_.get())})
    if (old != nullptr) master.forget(old->bytes(), &MemoryUse::other);
  logits_ = master.allocate(bytes.logits, &MemoryUse::other);
  grad_ = master.allocate(bytes.logits, &MemoryUse::other);
  labels_ = master.allocate(bytes.labels, &MemoryUse::other);
}

kernels::Op& GatheredLoss::op(std::int64_t rows) {
  for (const auto& [batch, op] : ops_)
    if (batch == rows) return *op;
  Replica& master = *team_.replicas.front();
  ops_.emplace_back(rows, make_op(setup_, master.context(), rows));
  kernels::Op& op = *ops_.back().second;
  if (workspace_ == nullptr || workspace_->bytes() < op.workspace_bytes()) {
    master.compute().synchronize();
    if (workspace_ != nullptr) master.forget(workspace_->bytes(), &MemoryUse::other);
    workspace_ = master.allocate(workspace_of(op), &MemoryUse::other);
  }
  return op;
}

void GatheredLoss::upload_labels(Replica& replica, const Batch& batch, Range rows) {
  if (replica.rank() != 0 || rows.size() == 0) return;
  current_labels_ = batch.labels.data<std::int32_t>() + rows.begin;
  if (replica.context().host_accessible()) return;
  reserve(rows.size());
  replica.compute().copy(labels_->data(), current_labels_,
                         static_cast<std::size_t>(rows.size()) * sizeof(std::int32_t));
  current_labels_ = labels_->data();
}

void GatheredLoss::gather_logits(Replica& replica, std::int64_t rows) {
  if (setup_.size() == 1) return;
  const Plan* plan = replica.select(0);
  const auto rank = static_cast<std::size_t>(replica.rank());
  const std::size_t row = static_cast<std::size_t>(setup_.model.output().numel()) * setup_.element_bytes();
  for (int r = 0; r < setup_.size(); ++r)
    part_bytes_[rank][static_cast<std::size_t>(r)] =
        static_cast<std::size_t>(setup_.rows_of_shard(rows, r).size()) * row;
  if (rank == 0) reserve(rows);
  team_.io_of(replica).gather(plan ? replica.at(plan->logits()) : nullptr, rank == 0 ? logits_->data() : nullptr,
                              part_bytes_[rank], 0, replica.compute());
}

void GatheredLoss::run(Replica& replica, std::int64_t rows) {
  if (rows == 0) return;
  const Plan* plan = replica.select(0);
  gather_logits(replica, rows);
  const bool master = replica.rank() == 0, alone = setup_.size() == 1;
  if (master) {
    kernels::Op& loss = op(rows);
    kernels::run_op<kernels::SoftmaxCrossEntropy>(loss, replica.compute(),
                                                  {.logits = alone ? replica.at(plan->logits()) : logits_->data(),
                                                   .labels = const_cast<void*>(current_labels_),
                                                   .inputs = replica.inputs(),
                                                   .dlogits = alone ? replica.at(plan->logits_grad()) : grad_->data(),
                                                   .results = replica.results(),
                                                   .scaler = replica.scaler()},
                                                  workspace_->data());
  }
  if (alone) return;
  const auto rank = static_cast<std::size_t>(replica.rank());
  team_.io_of(replica).scatter(master ? grad_->data() : nullptr, plan ? replica.at(plan->logits_grad()) : nullptr,
                               part_bytes_[rank], 0, replica.compute());
}

}  // namespace dp::engine
