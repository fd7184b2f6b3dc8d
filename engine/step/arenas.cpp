#include "engine/step/arenas.h"

#include <algorithm>

#include "kernels/op_args.h"

namespace dp::engine {

Arenas::Arenas(OpenDevice& device, const ParameterTable& table, const NormTable& norms, const ReplicaOptions& options)
    : device_(device), table_(table), options_(options) {
  kernels::Context& context = device.context();
  const Sizes bytes = sizes(table, norms, context, options);
  values_ = device.allocate(bytes.values, &MemoryUse::weights);
  gradients_ = device.allocate(bytes.gradients, &MemoryUse::gradients);
  inputs_ = device.allocate(bytes.inputs, &MemoryUse::other);
  results_ = device.allocate(bytes.results, &MemoryUse::other);
  if (context.activation_type() != context.compute_type())
    low_values_ = device.allocate(bytes.low_values, &MemoryUse::weights);
  if (options.scales_loss) {
    scaler_ = device.allocate(bytes.scaler, &MemoryUse::other);
    set_scaler({});
  }
  if (norms.count() > 0) {
    running_statistics_ = device.allocate(bytes.running_statistics, &MemoryUse::statistics);
    moments_ = device.allocate(bytes.moments, &MemoryUse::statistics);
    const auto clear = [&](std::size_t bytes_of_shard) {
      clear_statistic_.emplace_back(bytes_of_shard, context.make_op(kernels::Fill{bytes_of_shard}));
    };
    for (int i = 0; i < norms.count(); ++i) clear(norms.norm(i).moments_bytes()), clear(norms.norm(i).sums_bytes());
  }
  clear_gradients_ = context.make_op(kernels::Fill{table.bytes()});
  clear_results();
}

Arenas::Sizes Arenas::sizes(const ParameterTable& table, const NormTable& norms, const kernels::Context& context,
                            const ReplicaOptions& options) {
  const auto local_shards = static_cast<std::size_t>(options.local_shards);
  const DType low = context.activation_type();
  Sizes sizes;
  sizes.values = table.bytes();
  if (low != context.compute_type())
    sizes.low_values = static_cast<std::size_t>(table.size()) * context.element_bytes(low);
  sizes.gradients = table.bytes() * local_shards;
  sizes.running_statistics = static_cast<std::size_t>(norms.running_statistics_size()) * size_of(table.type());
  sizes.moments = norms.moments_bytes() * static_cast<std::size_t>(options.shards);
  sizes.inputs = sizeof(kernels::StepInputs);
  sizes.results = sizeof(kernels::StepResults) * local_shards;
  sizes.scaler = options.scales_loss ? sizeof(kernels::LossScaler) : 0;
  return sizes;
}

MemoryUse Arenas::Sizes::use() const {
  MemoryUse use;
  use.weights = values + low_values;
  use.gradients = gradients;
  use.statistics = running_statistics + moments;
  use.other = inputs + results + scaler;
  return use;
}

std::byte* Arenas::low_value(std::int64_t element) const {
  const kernels::Context& context = device_.context();
  return begin_of(low_values_) + static_cast<std::size_t>(element) * context.element_bytes(context.activation_type());
}

void Arenas::upload_step_inputs(const kernels::StepInputs& inputs) {
  device_.compute().upload(step_inputs(), &inputs, sizeof inputs);
}

kernels::LossScaler Arenas::read_scaler() {
  kernels::LossScaler copy;
  device_.compute().download(&copy, scaler(), sizeof copy);
  return copy;
}

void Arenas::set_scaler(const kernels::LossScaler& scaler) {
  device_.compute().upload(this->scaler(), &scaler, sizeof scaler);
}

void Arenas::zero_gradients(int shard) {
  kernels::run_op<kernels::Fill>(*clear_gradients_, device_.compute(),
                                 {.dst = gradients() + static_cast<std::size_t>(shard) * table_.bytes()});
}

void Arenas::zero_statistic(const AllGather& statistic, int shard) {
  const auto number = static_cast<std::size_t>(options_.rank * options_.local_shards + shard);
  std::byte* const entry = moments() + statistic.offset + number * statistic.shard_bytes;
  for (const auto& [bytes, op] : clear_statistic_)
    if (bytes == statistic.shard_bytes) return kernels::run_op<kernels::Fill>(*op, device_.compute(), {.dst = entry});
}

std::vector<kernels::StepResults> Arenas::take_results() {
  std::vector<kernels::StepResults> copies(static_cast<std::size_t>(options_.local_shards));
  device_.compute().download(copies.data(), step_results(), copies.size() * sizeof(kernels::StepResults));
  clear_results();
  return copies;
}

void Arenas::clear_results() {
  const kernels::StepResults empty{};
  for (int shard = 0; shard < options_.local_shards; ++shard)
    device_.compute().upload(step_results() + shard, &empty, sizeof empty);
}

void Arenas::import_entry(int index, const Tensor& from, std::byte* arena) {
  kernels::Context& context = device_.context();
  kernels::Stream& compute = device_.compute();
  const ParameterEntry& entry = table_.entry(index);
  const kernels::TensorDesc plain{entry.stored, from.dtype(), context.plain_layout(entry.stored, from.dtype())};
  const auto reorder = context.make_op(kernels::Reorder{plain, {entry.stored, table_.type(), entry.layout}});
  const auto staged = context.allocate(std::max(from.bytes(), std::size_t{1}));
  const auto workspace = context.allocate(std::max(reorder->workspace_bytes(), std::size_t{1}));
  compute.copy(staged->data(), from.raw(), from.bytes());
  std::byte* const values = arena + static_cast<std::size_t>(entry.offset) * size_of(table_.type());
  kernels::run_op<kernels::Reorder>(*reorder, compute, {.src = staged->data(), .dst = values}, workspace->data());
  compute.synchronize();
}

void Arenas::export_entry(int index, const std::byte* arena, Tensor& to) {
  engine::export_entry(device_, table_.entry(index), table_.type(), arena + bytes_of(table_.entry(index).offset), to);
}

void export_entry(OpenDevice& device, const ParameterEntry& entry, DType type, const std::byte* values, Tensor& to) {
  kernels::Context& context = device.context();
  const kernels::TensorDesc plain{entry.stored, to.dtype(), context.plain_layout(entry.stored, to.dtype())};
  const auto reorder = context.make_op(kernels::Reorder{{entry.stored, type, entry.layout}, plain});
  const auto workspace = context.allocate(std::max(reorder->workspace_bytes(), std::size_t{1}));
  const auto staged = context.host_accessible() ? nullptr : context.allocate(std::max(to.bytes(), std::size_t{1}));
  kernels::run_op<kernels::Reorder>(*reorder, device.compute(),
                                    {.src = const_cast<std::byte*>(values), .dst = staged ? staged->data() : to.raw()},
                                    workspace->data());
  if (staged) return device.compute().download(to.raw(), staged->data(), to.bytes());
  device.compute().synchronize();
}

namespace {

std::size_t largest_tensor(const ParameterTable& table) {
  std::int64_t most = 1;
  for (const ParameterEntry& entry : table.entries()) most = std::max(most, entry.shape.numel());
  return static_cast<std::size_t>(most) * size_of(table.type());
}

}  // namespace

std::size_t DeviceCopy::bytes(const ParameterTable& table, std::size_t arenas, std::size_t statistics) {
  return arenas * aligned(table.bytes()) + aligned(statistics) + aligned(largest_tensor(table));
}

std::unique_ptr<DeviceCopy> DeviceCopy::make(OpenDevice& device, const ParameterTable& table, std::size_t bytes,
                                             kernels::AbortFlag* abort) try {
  const Device place = device.context().device();
  if (kernels::backend(place.kind).free_memory(place) / 2 < bytes) return nullptr;
  return std::unique_ptr<DeviceCopy>(new DeviceCopy(device, table, bytes, abort));
} catch (const Error& error) {
  if (error.code() != ErrorCode::device || abort->load()) throw;
  return nullptr;
}

DeviceCopy::DeviceCopy(OpenDevice& device, const ParameterTable& table, std::size_t bytes, kernels::AbortFlag* abort)
    : table_(table), bytes_(bytes), reader_([&] {
        kernels::ContextOptions options;
        options.abort = abort;
        const Device place = device.context().device();
        return kernels::backend(place.kind).open(place, options);
      }()) {
  kernels::Context& context = reader_.context();
  const std::size_t staged = aligned(largest_tensor(table));
  memory_ = device.context().allocate(bytes - staged);
  staged_ = context.allocate(staged);
  std::size_t workspace = 1;
  for (const ParameterEntry& entry : table.entries()) {
    const kernels::TensorDesc plain{entry.stored, table.type(), context.plain_layout(entry.stored, table.type())};
    reorders_.push_back(context.make_op(kernels::Reorder{{entry.stored, table.type(), entry.layout}, plain}));
    workspace = std::max(workspace, reorders_.back()->workspace_bytes());
  }
  workspace_ = context.allocate(workspace);
}

std::byte* DeviceCopy::take(std::size_t bytes) {
  std::byte* const begin = static_cast<std::byte*>(memory_->data()) + taken_;
  taken_ += aligned(bytes);
  return begin;
}

void DeviceCopy::read(int entry, const std::byte* arena, Tensor& to) {
  const auto offset = static_cast<std::size_t>(table_.entry(entry).offset) * size_of(table_.type());
  kernels::run_op<kernels::Reorder>(*reorders_[static_cast<std::size_t>(entry)], reader_.compute(),
                                    {.src = const_cast<std::byte*>(arena) + offset, .dst = staged_->data()},
                                    workspace_->data());
  read(static_cast<const std::byte*>(staged_->data()), to);
}

void DeviceCopy::read(const std::byte* from, Tensor& to) { reader_.compute().download(to.raw(), from, to.bytes()); }

}  // namespace dp::engine
