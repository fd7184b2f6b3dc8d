#include "engine/state/state_dict.h"

#include <algorithm>
#include <iterator>

namespace dp::engine {
namespace {

template <typename T>
void multiply_by(Tensor& tensor, double factor) {
  for (T& value : tensor.span<T>()) value = static_cast<T>(static_cast<double>(value) * factor);
}
void multiply(Tensor& tensor, double factor) {
  tensor.dtype() == DType::f64 ? multiply_by<double>(tensor, factor) : multiply_by<float>(tensor, factor);
}

// Offset in the arena of running statistics, in elements.
std::int64_t offset_of(const NormTable& norms, const BufferSpec& buffer) {
  for (int i = 0; i < norms.count(); ++i) {
    const Norm& norm = norms.norm(i);
    if (buffer.layer == norm.layer) return buffer.kind == BufferKind::running_mean ? norm.mean : norm.variance;
  }
  throw Error(ErrorCode::usage, "no layer of the model has '" + buffer.name + "'");
}

// The same values in this type. `what` names the tensor.
Tensor as_type(const Tensor& tensor, DType type, const std::string& what) try {
  if (tensor.empty()) throw Error(ErrorCode::data, "is empty");
  return tensor.to(type);
} catch (const Error& error) {
  throw Error(error.code(), what + " " + error.what());
}

}  // namespace

template <typename F>
StateDict::Tensors StateDict::tensors_of_stages(F&& of_stage) {
  std::vector<Tensors> stages(setup_.stages.size());
  team_.on_first_replica([&](Worker& first) { stages[static_cast<std::size_t>(first.stage())] = of_stage(first); });
  Tensors all = std::move(stages.front());
  for (std::size_t stage = 1; stage < stages.size(); ++stage) std::ranges::move(stages[stage], std::back_inserter(all));
  return all;
}

StateDict::Tensors StateDict::weights() {
  team_.wait_for_all();
  all_gather_values();
  return tensors_of_stages([&](Worker& first) { return weights_of(first); });
}

StateDict::Tensors StateDict::weights_of(Worker& first) {
  Tensors all;
  const ParameterTable& table = first.arenas.table();
  const std::vector<ArenaPart> parts = value_parts(first);
  for_each_weight(
      setup_.stage(first.stage()).model,
      [&](int entry) {
        Tensor tensor(table.entry(entry).shape, table.type());
        export_parameter(first.device, table, entry, parts, tensor);
        all.emplace_back(table.entry(entry).name, std::move(tensor));
      },
      [&](const BufferSpec& spec) {
        all.emplace_back(spec.name, buffer(first, spec, first.arenas.running_statistics()));
      });
  return all;
}

StateDict::Tensors StateDict::gradients() { return export_arena(Arena::gradient, 0); }
StateDict::Tensors StateDict::optimizer_slot(std::size_t slot) { return export_arena(Arena::state, slot); }

StateDict::Tensors StateDict::export_arena(Arena arena, std::size_t slot) {
  team_.wait_for_all();
  return tensors_of_stages([&](Worker& first) {
    const bool scaled = arena == Arena::gradient && setup_.scales_loss();
    const double factor = scaled ? 1.0 / static_cast<double>(first.arenas.read_scaler().last_scale) : 1.0;
    const ParameterTable& table = first.arenas.table();
    const std::vector<ArenaPart> parts = parts_of(first.stage(), arena, slot);
    Tensors tensors;
    for (int entry = 0; entry < static_cast<int>(table.entries().size()); ++entry) {
      Tensor tensor(table.entry(entry).shape, table.type());
      export_parameter(first.device, table, entry, parts, tensor);
      if (factor != 1) multiply(tensor, factor);
      tensors.emplace_back(table.entry(entry).name, std::move(tensor));
    }
    return tensors;
  });
}

void export_parameter(OpenDevice& device, const ParameterTable& table, int index, const std::vector<ArenaPart>& parts,
                      Tensor& to) {
  const ParameterEntry& entry = table.entry(index);
  const std::int64_t end = entry.offset + entry.count;
  const std::size_t element = size_of(table.type());
  const auto bytes = [&](std::int64_t elements) { return static_cast<std::size_t>(elements) * element; };
  for (const ArenaPart& part : parts)
    if (part.near && part.range.begin <= entry.offset && end <= part.range.end)
      return export_entry(device, entry, table.type(), part.data + bytes(entry.offset - part.range.begin), to);
  const auto whole = device.context().allocate(bytes(entry.count));
  for (const ArenaPart& part : parts) {
    const std::int64_t from = std::max(part.range.begin, entry.offset), until = std::min(part.range.end, end);
    if (from < until)
      device.compute().copy(static_cast<std::byte*>(whole->data()) + bytes(from - entry.offset),
                            part.data + bytes(from - part.range.begin), bytes(until - from));
  }
  export_entry(device, entry, table.type(), static_cast<const std::byte*>(whole->data()), to);
}

std::vector<ArenaPart> StateDict::value_parts(const Worker& first) const {
  return {{{0, first.arenas.table().size()}, first.arenas.values(), true}};
}

std::vector<ArenaPart> StateDict::parts_of(int stage, Arena arena, std::size_t slot) const {
  std::vector<ArenaPart> all;
  for (int replica = 0; replica < team_.local_replica_count(); ++replica) {
    const Worker& worker = *team_.workers[team_.worker_number(replica, stage)];
    LocalOptimizer& optimizer = worker.gradient_sync->optimizer();
    const bool near = replica == 0 || worker.context().host_accessible();
    for (const LocalOptimizer::Part& part : optimizer.parts())
      if (part.range.size() != 0)
        all.push_back(
            {part.range,
             arena == Arena::gradient ? worker.arenas.gradient(part.range.begin) : optimizer.state(slot, part), near});
    if (setup_.options.reduce == Reduce::all_reduce) break;  // every replica has the whole arena
  }
  return all;
}

std::unique_ptr<kernels::Buffer> StateDict::assemble(Worker& first, Arena arena, std::size_t slot) {
  auto whole = first.context().allocate(first.arenas.table().bytes());
  const std::size_t element = setup_.element_bytes();
  for (const ArenaPart& part : parts_of(first.stage(), arena, slot))
    first.compute().copy(static_cast<std::byte*>(whole->data()) + static_cast<std::size_t>(part.range.begin) * element,
                         part.data, static_cast<std::size_t>(part.range.size()) * element);
  return whole;
}

StateDict::FoundParameter StateDict::find(const std::string& name, const Tensor& tensor) const {
  const std::string& model = setup_.model.name();
  for (int stage = 0; stage < setup_.stage_count(); ++stage) {
    const std::vector<ParameterEntry>& entries = setup_.stage(stage).table->entries();
    const auto entry = std::ranges::find(entries, name, &ParameterEntry::name);
    if (entry == entries.end()) continue;
    if (tensor.shape() != entry->shape)
      throw Error(ErrorCode::data, "parameter '" + name + "' has shape " + to_string(entry->shape) + " in model '" +
                                       model + "', not " + to_string(tensor.shape()));
    return {stage, static_cast<int>(entry - entries.begin()),
            as_type(tensor, setup_.type(), "parameter '" + name + "'")};
  }
  throw Error(ErrorCode::data, "model '" + model + "' has no parameter '" + name + "'");
}

std::vector<StateDict::FoundParameter> StateDict::find(const Tensors& tensors) const {
  std::vector<FoundParameter> found;
  for (const auto& [name, tensor] : tensors) found.push_back(find(name, tensor));
  return found;
}

StateDict::FoundWeights StateDict::find_weights(const Tensors& tensors) const {
  FoundWeights found;
  for (const auto& [name, tensor] : tensors) {
    if (const auto buffer = find_buffer(name, tensor)) {
      found.buffers.push_back(*buffer);
    } else {
      found.parameters.push_back(find(name, tensor));
    }
  }
  return found;
}

void StateDict::check_weights(const Tensors& tensors) const { find_weights(tensors); }

void StateDict::set_weights(const Tensors& tensors) {
  const FoundWeights found = find_weights(tensors);
  team_.wait_for_all();
  all_gather_values();  // `tensors` may contain only some of them
  team_.on_first_replica([&](Worker& first) {
    for (const FoundParameter& one : found.parameters)
      if (one.stage == first.stage()) first.arenas.import_entry(one.entry, one.tensor, first.arenas.values());
    for (const FoundBuffer& one : found.buffers)
      if (one.stage == first.stage() && !is_counter(*one.buffer)) import_buffer(first, *one.buffer, one.tensor);
  });
  for (const FoundBuffer& one : found.buffers)
    if (is_counter(*one.buffer)) batches_tracked_ = *one.tensor.data<std::int64_t>();
  statistics_outdated_ = true;
  broadcast_weights();
}

void StateDict::broadcast_weights() {
  team_.on_workers([](Worker& worker) {
    worker.gradient_sync->broadcast_weights();
    worker.context().flush();
  });
}

void StateDict::check_slot(const Tensors& tensors) const { find(tensors); }

void StateDict::set_optimizer_slot(std::size_t slot, const Tensors& tensors) {
  const std::vector<FoundParameter> found = find(tensors);
  team_.wait_for_all();
  std::vector<std::unique_ptr<kernels::Buffer>> wholes(setup_.stages.size());
  team_.on_first_replica([&](Worker& first) {
    auto& whole = wholes[static_cast<std::size_t>(first.stage())];
    whole = assemble(first, Arena::state, slot);
    for (const FoundParameter& one : found)
      if (one.stage == first.stage())
        first.arenas.import_entry(one.entry, one.tensor, static_cast<std::byte*>(whole->data()));
    first.compute().synchronize();
  });
  team_.on_workers([&](Worker& worker) {
    const std::size_t element = setup_.element_bytes();
    LocalOptimizer& optimizer = worker.gradient_sync->optimizer();
    const auto* const whole = static_cast<const std::byte*>(wholes[static_cast<std::size_t>(worker.stage())]->data());
    for (const LocalOptimizer::Part& part : optimizer.parts()) {
      if (part.range.size() == 0) continue;
      const auto begin = static_cast<std::size_t>(part.range.begin) * element;
      worker.compute().copy(optimizer.state(slot, part), whole + begin,
                            static_cast<std::size_t>(part.range.size()) * element);
    }
    worker.compute().synchronize();
  });
}

void StateDict::all_gather_values() {
  team_.on_workers([](Worker& worker) {
    worker.gradient_sync->all_gather_values();
    worker.context().flush();
  });
}

void StateDict::broadcast_running_statistics() {
  if (!std::exchange(statistics_outdated_, false) || setup_.model.buffers().empty() || setup_.replica_count() == 1)
    return;
  team_.on_workers([&](Worker& worker) {
    const NormTable& norms = setup_.stage(worker.stage()).norms;
    if (norms.count() == 0) return;
    worker.compute_communicator->broadcast(worker.arenas.running_statistics(), norms.running_statistics_size(),
                                           setup_.type(), 0, worker.compute());
    worker.context().flush();
  });
}

std::optional<StateDict::FoundBuffer> StateDict::find_buffer(const std::string& name, const Tensor& tensor) const {
  for (int stage = 0; stage < setup_.stage_count(); ++stage)
    for (const BufferSpec& buffer : setup_.stage(stage).model.buffers())
      if (buffer.name == name) {
        if (tensor.shape() != buffer.shape)
          throw Error(ErrorCode::data, "'" + name + "' has shape " + to_string(buffer.shape) + " in model '" +
                                           setup_.model.name() + "', not " + to_string(tensor.shape()));
        const DType type = is_counter(buffer) ? DType::i64 : setup_.type();
        return FoundBuffer{stage, &buffer, as_type(tensor, type, "'" + name + "'")};
      }
  return {};
}

void StateDict::import_buffer(Worker& first, const BufferSpec& buffer, const Tensor& tensor) {
  const auto offset = static_cast<std::size_t>(offset_of(setup_.stage(first.stage()).norms, buffer));
  first.compute().copy(first.arenas.running_statistics() + offset * setup_.element_bytes(), tensor.raw(),
                       tensor.bytes());
  first.compute().synchronize();
}

Tensor StateDict::buffer(Worker& first, const BufferSpec& buffer, const std::byte* statistics) const {
  Tensor tensor(buffer.shape, is_counter(buffer) ? DType::i64 : setup_.type());
  if (is_counter(buffer)) {
    *tensor.data<std::int64_t>() = batches_tracked_;
  } else {
    first.compute().download(tensor.raw(), place_of(first.stage(), buffer, statistics), tensor.bytes());
  }
  return tensor;
}

const std::byte* StateDict::place_of(int stage, const BufferSpec& buffer, const std::byte* statistics) const {
  return statistics + static_cast<std::size_t>(offset_of(setup_.stage(stage).norms, buffer)) * setup_.element_bytes();
}

}  // namespace dp::engine
