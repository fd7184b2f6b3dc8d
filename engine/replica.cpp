#include "engine/replica.h"

#include <algorithm>

namespace dp::engine {

Replica::Replica(const Model& model, std::unique_ptr<kernels::Context> context, const ParameterTable& table, int rank)
    : model_(model), context_(std::move(context)), table_(table), rank_(rank), compute_(context_->make_stream()) {
  values_ = allocate(table.bytes());
  gradients_ = allocate(table.bytes());
  step_inputs_ = allocate(sizeof(kernels::StepInputs));
  step_results_ = allocate(sizeof(kernels::StepResults));
  set_base(Space::value, values_->data());
  set_base(Space::gradient, gradients_->data());
  set_base(Space::step_inputs, step_inputs_->data());
  set_base(Space::step_results, step_results_->data());
  clear_gradients_ = context_->make_op(kernels::Fill{table.bytes()});
  for (auto& event : consumed_) event = context_->make_event();
  const kernels::StepResults empty{};
  compute_->upload(results(), &empty, sizeof empty);
}

std::unique_ptr<kernels::Buffer> Replica::allocate(std::size_t bytes) {
  auto buffer = context_->allocate(bytes);
  bytes_held_ += bytes;
  return buffer;
}

const Plan& Replica::plan(const PlanOptions& options) {
  const auto same = [&](const std::unique_ptr<Plan>& plan) {
    const PlanOptions& o = plan->options();
    return o.batch == options.batch && o.training == options.training && o.accumulate == options.accumulate &&
           o.dropout == options.dropout;
  };
  const auto known = std::find_if(plans_.begin(), plans_.end(), same);
  if (known != plans_.end()) return **known;
  plans_.push_back(std::make_unique<Plan>(model_, *context_, options, &table_));
  reserve(*plans_.back());
  return *plans_.back();
}

void Replica::reserve(const Plan& plan) {
  const std::size_t needed = plan.arena_bytes() + plan.workspace_bytes();
  if (arena_ == nullptr || arena_->bytes() < needed) {
    compute_->synchronize();
    bytes_held_ -= arena_ ? arena_->bytes() : 0;
    arena_.reset();
    arena_ = allocate(needed);
    set_base(Space::activation, arena_->data());
  }
  if (context_->host_accessible()) return;
  const auto at_least = [&](std::unique_ptr<kernels::Buffer>& buffer, std::size_t bytes) {
    if (buffer != nullptr && buffer->bytes() >= bytes) return;
    compute_->synchronize();
    bytes_held_ -= buffer ? buffer->bytes() : 0;
    buffer = allocate(bytes);
  };
  const auto rows = static_cast<std::size_t>(plan.options().batch);
  at_least(images_, rows * static_cast<std::size_t>(model_.input().numel()) * sizeof(float));
  at_least(labels_, rows * sizeof(std::int32_t));
  at_least(samples_, rows * sizeof(std::int64_t));
}

template <typename T>
void Replica::bind_input(Space space, std::unique_ptr<kernels::Buffer>& staged, const T* host, std::int64_t count) {
  if (context_->host_accessible() || host == nullptr) {
    set_base(space, const_cast<T*>(host));  // ops only read it
    return;
  }
  set_base(space, staged->data());
  compute_->copy(staged->data(), host, static_cast<std::size_t>(count) * sizeof(T));
}

void Replica::bind(const Plan& plan, const Shard& shard) {
  bind_input(Space::input, images_, shard.images, shard.rows * model_.input().numel());
  bind_input(Space::labels, labels_, shard.labels, shard.rows);
  bind_input(Space::samples, samples_, shard.samples, shard.rows);
  workspace_ = base_[static_cast<std::size_t>(Space::activation)] + plan.arena_bytes();
}

void Replica::upload_inputs(const kernels::StepInputs& inputs) {
  compute_->upload(this->inputs(), &inputs, sizeof inputs);
}

void Replica::enqueue(const PlanStep& step) {
  std::array<void*, kernels::kMaxOpArgs> args;
  for (int i = 0; i < step.arg_count; ++i) {
    const Ref& ref = step.args[static_cast<std::size_t>(i)];
    args[static_cast<std::size_t>(i)] = ref.space == Space::none ? nullptr : at(ref);
  }
  step.op->run(*compute_, {args.data(), static_cast<std::size_t>(step.arg_count)}, workspace_);
}

void Replica::zero_gradients() {
  void* const args[] = {gradients()};
  clear_gradients_->run(*compute_, args, nullptr);
}

void Replica::bound_queue() {
  compute_->record(*consumed_[turn_]);
  turn_ ^= 1;
  compute_->synchronize(*consumed_[turn_]);
}

kernels::StepResults Replica::take_results() {
  kernels::StepResults copy;
  compute_->copy(&copy, results(), sizeof copy);
  const kernels::StepResults empty{};
  compute_->upload(results(), &empty, sizeof empty);
  compute_->synchronize();
  return copy;
}

void Replica::import_entry(int index, const Tensor& from, std::byte* arena) {
  const ParameterEntry& entry = table_.entry(index);
  const kernels::TensorDesc plain{entry.shape, from.dtype(), context_->plain_layout(entry.shape, from.dtype())};
  const auto reorder = context_->make_op(kernels::Reorder{plain, {entry.shape, table_.type(), entry.layout}});
  const auto staged = context_->allocate(std::max(from.bytes(), std::size_t{1}));
  const auto workspace = context_->allocate(std::max(reorder->workspace_bytes(), std::size_t{1}));
  compute_->copy(staged->data(), from.raw(), from.bytes());
  void* const args[] = {staged->data(), arena + static_cast<std::size_t>(entry.offset) * size_of(table_.type())};
  reorder->run(*compute_, args, workspace->data());
  compute_->synchronize();
}

void Replica::export_entry(int index, const std::byte* arena, Tensor& to) {
  const ParameterEntry& entry = table_.entry(index);
  const kernels::TensorDesc plain{entry.shape, to.dtype(), context_->plain_layout(entry.shape, to.dtype())};
  const auto reorder = context_->make_op(kernels::Reorder{{entry.shape, table_.type(), entry.layout}, plain});
  const auto staged = context_->allocate(std::max(to.bytes(), std::size_t{1}));
  const auto workspace = context_->allocate(std::max(reorder->workspace_bytes(), std::size_t{1}));
  const std::byte* source = arena + static_cast<std::size_t>(entry.offset) * size_of(table_.type());
  void* const args[] = {const_cast<std::byte*>(source), staged->data()};
  reorder->run(*compute_, args, workspace->data());
  compute_->copy(to.raw(), staged->data(), to.bytes());
  compute_->synchronize();
}

}  // namespace dp::engine
