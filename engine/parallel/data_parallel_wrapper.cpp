// The step-by-step interface, as with nn.DataParallel: forward, backward, step.
#include <algorithm>

#include "dp/error.h"
#include "engine/parallel/data_parallel_state.h"

namespace dp {
namespace {

// The memory of a tensor: a range of a backend's buffer.
class BufferStorage final : public Storage {
 public:
  BufferStorage(std::shared_ptr<kernels::Buffer> buffer, std::size_t offset, std::size_t bytes, Device device,
                bool host_accessible)
      : buffer_(std::move(buffer)),
        offset_(offset),
        bytes_(bytes),
        device_(device),
        host_accessible_(host_accessible) {}

  void* data() override { return static_cast<std::byte*>(buffer_->data()) + offset_; }
  std::size_t bytes() const override { return bytes_; }
  Device device() const override { return device_; }
  bool host_accessible() const override { return host_accessible_; }
  void read(void* dst, const void* src, std::size_t bytes) const override { buffer_->read(dst, src, bytes); }

 private:
  std::shared_ptr<kernels::Buffer> buffer_;
  std::size_t offset_, bytes_;
  Device device_;
  bool host_accessible_;
};

void refuse_scaled(bool scales_loss) {
  if (scales_loss) throw Error(ErrorCode::usage, "float16 scales the loss on the devices: use train_step, or bfloat16");
}

}  // namespace

void DataParallel::State::reserve_gather(std::int64_t rows) {
  const std::size_t bytes = static_cast<std::size_t>(rows * model.output().numel()) * size_of(table->type());
  if (gathered_logits != nullptr && gathered_logits->bytes() >= bytes) return;
  engine::Replica& master = *replicas.front();
  master.compute().synchronize();
  for (const kernels::Buffer* old : {gathered_logits.get(), gathered_grad.get(), gathered_labels.get()})
    if (old != nullptr) master.forget(old->bytes(), &MemoryUse::other);
  gathered_logits = master.allocate(bytes, &MemoryUse::other);
  gathered_grad = master.allocate(bytes, &MemoryUse::other);
  gathered_labels = master.allocate(static_cast<std::size_t>(rows) * sizeof(std::int32_t), &MemoryUse::other);
}

kernels::Op& DataParallel::State::gathered_loss_op(std::int64_t rows) {
  for (const auto& [batch, op] : loss_ops)
    if (batch == rows) return *op;
  loss_ops.emplace_back(rows, replicas.front()->context().make_op(
                                  kernels::SoftmaxCrossEntropy{rows, model.output().numel(), scales_loss()}));
  kernels::Op& op = *loss_ops.back().second;
  if (loss_workspace == nullptr || loss_workspace->bytes() < op.workspace_bytes()) {
    replicas.front()->compute().synchronize();
    if (loss_workspace != nullptr) replicas.front()->forget(loss_workspace->bytes(), &MemoryUse::other);
    loss_workspace = replicas.front()->allocate(std::max(op.workspace_bytes(), std::size_t{1}), &MemoryUse::other);
  }
  return op;
}

const Tensor& DataParallel::State::forward_all(const Tensor& images, bool training) {
  if (images.empty() || images.shape().rank() == 0 || images.shape()[0] < 1 ||
      images.shape().without_first() != model.input())
    throw Error(ErrorCode::usage, "images of shape " + to_string(images.shape()) + " do not fit model '" +
                                      model.name() + "', which reads " + to_string(model.input()) + " per sample");
  if (options.process_group)
    throw Error(ErrorCode::usage, "with a process group only train_step and evaluate are available");
  if (local_shards() > 1)
    throw Error(
        ErrorCode::usage,
        "with several logical shards on a replica there are train_step and evaluate only; for the steps one by one "
        "use as many logical shards as replicas, or none");
  const std::int64_t rows = images.shape()[0];
  if (training) require_two_values(rows, rows, /*micro_batches=*/1);
  Batch batch;
  batch.images = forward_images = images;
  number_rows(rows);
  forward_rows = 0;
  if (training && begun) end_step();
  std::size_t offset = 0;
  reserve({rows, training, /*gathers=*/true, /*micro_batches=*/1});
  if (!training) broadcast_buffers();
  on_replicas([&](engine::Replica& replica, engine::GradientSync& gradient_sync) {
    gradient_sync.wait_for_weights();
    replica.upload_inputs(step_inputs(rows));
    scatter(replica, batch, {0, rows}, training, /*accumulate=*/false, /*gathers=*/true);
    forward(replica, ShardRange{}, training);
    gather_logits(replica, rows);
    if (replica.rank() == 0) offset = replica.plan_of(0)->logits().offset;
    replica.context().flush();
    replica.compute().synchronize();
  });
  engine::Replica& master = *replicas.front();
  const Shape shape = model.output().prepended(rows);
  const std::size_t bytes = static_cast<std::size_t>(shape.numel()) * size_of(table->type());
  logits =
      Tensor(shape, table->type(),
             std::make_shared<BufferStorage>(size() == 1 ? master.arena() : gathered_logits, size() == 1 ? offset : 0,
                                             bytes, options.devices.front(), master.context().host_accessible()));
  if (training) {
    begun = true;
    forward_rows = rows;
    ++batches_tracked;
    buffers_behind = true;
  }
  return logits;
}

const Tensor& DataParallel::forward(const Tensor& images) { return state_->forward_all(images, /*training=*/true); }
const Tensor& DataParallel::predict(const Tensor& images) { return state_->forward_all(images, /*training=*/false); }

void DataParallel::backward(const Tensor& logits_grad) {
  State& s = *state_;
  refuse_scaled(s.scales_loss());
  if (s.forward_rows == 0) throw Error(ErrorCode::usage, "backward() needs a forward() before it");
  if (logits_grad.shape() != s.logits.shape() || logits_grad.dtype() != s.logits.dtype())
    throw Error(ErrorCode::usage, std::string("the gradient of the logits has shape ") +
                                      to_string(logits_grad.shape()) + " and type " + to_string(logits_grad.dtype()) +
                                      ", the logits have " + to_string(s.logits.shape()) + " and " +
                                      to_string(s.logits.dtype()));
  const std::int64_t rows = s.forward_rows;
  s.forward_rows = 0;
  s.on_replicas([&](engine::Replica& replica, engine::GradientSync& gradient_sync) {
    gradient_sync.begin(s.step, /*per_bucket=*/false);
    const kernels::Range own = s.rows_of(rows, replica, 0);
    if (const engine::Plan* plan = replica.select(0)) {
      const Tensor part = logits_grad.rows(own.begin, own.end);
      replica.compute().copy(replica.at(plan->logits_grad()), part.raw(), part.bytes());
    }
    s.backward(replica, gradient_sync, State::ShardRange{}, /*accumulate=*/false, /*last=*/true);
    replica.context().flush();
    gradient_sync.synchronize();
    replica.compute().synchronize();
  });
}

void DataParallel::step(const Optimizer& optimizer) {
  State& s = *state_;
  engine::check(optimizer);
  refuse_scaled(s.scales_loss());
  s.forward_rows = 0;
  s.reserve_state(optimizer);
  s.on_replicas([&](engine::Replica& replica, engine::GradientSync& gradient_sync) {
    gradient_sync.wait_for_weights();
    replica.upload_inputs(s.step_inputs(1, &optimizer));
    gradient_sync.optimizer().use(engine::kind_of(optimizer));
    gradient_sync.begin(s.step, /*per_bucket=*/false);
    gradient_sync.update(s.update_waits_for_gradient());
    s.update_average(replica, gradient_sync);
    replica.context().flush();
    s.check_finite(replica);
  });
  s.end_step();
  ++s.updates;
}

}  // namespace dp
