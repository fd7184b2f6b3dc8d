// The parts of a step as separate calls, as with nn.DataParallel: forward, backward, step.
#include <cmath>

#include "dp/error.h"
#include "engine/optimizer/optimizer.h"
#include "engine/parallel/data_parallel_state.h"
#include "engine/parallel/host_stats.h"

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

void refuse_parts_of_steps(const engine::ModelSetup& setup) {
  const auto refuse = [](const std::string& with, const std::string& remedy = "") {
    throw Error(ErrorCode::usage, "with " + with + " only train_step and evaluate are available" + remedy);
  };
  if (setup.options.process_group) refuse("a process group");
  if (setup.pipelined()) refuse("pipeline stages");
  if (setup.local_shards() > 1)
    refuse("several logical shards per replica",
           "; to call forward() and backward(), use as many logical shards as replicas, or no logical shards");
}

void refuse_scaled(bool scales_loss) {
  if (scales_loss)
    throw Error(ErrorCode::usage,
                "with float16 only train_step trains, because the devices scale the loss; use train_step, or bfloat16");
}

}  // namespace

const Tensor& DataParallel::State::forward_all(const Batch& batch, bool training) {
  const Model& model = setup.model;
  const Tensor& images = batch.images;
  if (images.empty() || images.shape().rank() == 0 || images.shape()[0] < 1 ||
      images.shape().without_first() != model.input())
    throw Error(ErrorCode::usage, "images of shape " + to_string(images.shape()) + " do not fit model '" +
                                      model.name() + "', which reads " + to_string(model.input()) + " per sample");
  require_type(images, DType::f32, "images");
  refuse_parts_of_steps(setup);
  const std::int64_t rows = images.shape()[0];
  if (training) require_two_values(rows, rows, /*micro_batches=*/1);
  forward_images = images;
  team.extend_row_numbers(rows);
  forward_rows = 0;
  if (training) begin_change();
  if (training && begun) end_step();
  std::size_t offset = 0;
  reserve({rows, training, /*gathers_logits=*/true, /*micro_batches=*/1});
  if (!training) state_dict.broadcast_running_statistics();
  const kernels::StepInputs inputs = step_inputs(rows);
  team.on_workers([&](engine::Worker& worker) {
    worker.forward_alone(batch, rows, training, inputs);
    if (worker.rank() == 0) offset = worker.runner.plan_of(0)->logits().offset;
  });
  engine::Worker& master = first();
  const bool alone = setup.replica_count() == 1;
  const Shape shape = model.output().prepended(rows);
  const std::size_t bytes = static_cast<std::size_t>(shape.numel()) * setup.element_bytes();
  logits = Tensor(shape, setup.type(),
                  std::make_shared<BufferStorage>(
                      alone ? master.runner.activation_arena() : master.gathered_loss.logits(), alone ? offset : 0,
                      bytes, setup.options.devices.front(), master.context().host_accessible()));
  if (training) {
    begun = true;
    forward_rows = rows;
    state_dict.count_trained_batches(/*batches=*/1);
  }
  return logits;
}

void DataParallel::State::OwnOutputs::append(const Tensor& outputs, const Batch& batch) {
  const std::int64_t rows = batch.size();
  if (static_cast<std::int64_t>(samples.size()) + rows > most) return;
  const auto add = [](auto& to, const Tensor& tensor) {
    const auto* const begin = static_cast<const std::byte*>(tensor.raw());
    to.insert(to.end(), begin, begin + tensor.bytes());
  };
  add(logits, outputs);
  for (std::int64_t row = 0; row < rows; ++row)
    samples.push_back(batch.samples.empty() ? row : batch.samples.data<std::int64_t>()[row]);
  if (!batch.targets.empty())
    add(targets, batch.targets);
  else
    labels.insert(labels.end(), batch.labels.data<std::int32_t>(), batch.labels.data<std::int32_t>() + rows);
}

Loss DataParallel::State::own_loss(const Batch& batch, bool training) {
  const Tensor& gathered = forward_all(batch, training);
  const Tensor outputs = gathered.storage()->host_accessible() ? gathered : gathered.clone();
  Loss loss = setup.options.own_loss->function(outputs, batch);
  const bool finite = std::isfinite(loss.value);
  if (!finite && setup.options.on_nonfinite == OnNonfinite::abort)
    throw Error(ErrorCode::nonfinite,
                "the loss '" + setup.options.own_loss->name + "' is not finite in step " + std::to_string(team.step));
  own_stats.has_labels = !batch.labels.empty() && batch.targets.empty();
  if (!training && own_outputs) own_outputs->append(outputs, batch);
  if (finite || !training) {
    own_stats.loss_sum += loss.value * static_cast<double>(batch.size());
    engine::add_accuracies(outputs, batch.labels, own_stats);
  } else {  // the update skips a step whose gradient is not finite
    loss.grad = Tensor(outputs.shape(), outputs.dtype());
    if (outputs.dtype() == DType::f64)
      std::ranges::fill(loss.grad.span<double>(), NAN);
    else
      std::ranges::fill(loss.grad.span<float>(), NAN);
  }
  return loss;
}

void DataParallel::State::backward(const Tensor& logits_grad) {
  refuse_scaled(setup.scales_loss());
  if (forward_rows == 0) throw Error(ErrorCode::usage, "backward() needs a forward() before it");
  if (logits_grad.shape() != logits.shape() || logits_grad.dtype() != logits.dtype())
    throw Error(ErrorCode::usage, std::string("the gradient of the logits has shape ") +
                                      to_string(logits_grad.shape()) + " and type " + to_string(logits_grad.dtype()) +
                                      ", the logits have " + to_string(logits.shape()) + " and " +
                                      to_string(logits.dtype()));
  const std::int64_t rows = forward_rows;
  forward_rows = 0;
  team.on_workers([&](engine::Worker& worker) { worker.backward_alone(logits_grad, rows); });
}

void DataParallel::State::update(const Optimizer& by) {
  refuse_parts_of_steps(setup);
  refuse_scaled(setup.scales_loss());
  engine::check(by);
  begin_change();
  const engine::UpdateKind kind = engine::kind_of(by);
  reserve(kind);
  const kernels::StepInputs inputs = step_inputs(1, &by);
  team.on_workers([&](engine::Worker& worker) { worker.update_alone(inputs, kind); });
  end_step();
  updated();
}

}  // namespace dp
