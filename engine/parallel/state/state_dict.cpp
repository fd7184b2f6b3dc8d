#include "engine/parallel/state/state_dict.h"

namespace dp::engine {
namespace {

template <typename T>
void multiply_by(Tensor& tensor, double factor) {
  for (T& value : tensor.span<T>()) value = static_cast<T>(static_cast<double>(value) * factor);
}
void multiply(Tensor& tensor, double factor) {
  tensor.dtype() == DType::f64 ? multiply_by<double>(tensor, factor) : multiply_by<float>(tensor, factor);
}

bool is_counter(const BufferSpec& buffer) { return buffer.kind == BufferKind::num_batches_tracked; }

// Offset in the buffer arena, in elements.
std::int64_t place_of(const NormTable& norms, const BufferSpec& buffer) {
  for (int i = 0; i < norms.count(); ++i) {
    const Norm& norm = norms.norm(i);
    if (buffer.layer == norm.layer) return buffer.kind == BufferKind::running_mean ? norm.mean : norm.variance;
  }
  throw Error(ErrorCode::usage, "no layer of the model has '" + buffer.name + "'");
}

template <typename From, typename To>
void convert(const Tensor& from, Tensor& to) {
  const auto source = from.span<From>();
  const auto target = to.span<To>();
  for (std::size_t i = 0; i < source.size(); ++i) target[i] = static_cast<To>(source[i]);
}

}  // namespace

StateDict::Tensors StateDict::weights() {
  team_.wait_for_all();
  gather_values();
  Tensors parameters;
  team_.on_first(
      [&](Replica& first, GradientSync&) { parameters = export_entries(first, first.values(), /*factor=*/1); });
  const Model& model = setup_.model;
  if (model.buffers().empty()) return parameters;
  Tensors buffers = export_buffers(), all;
  std::size_t next = 0;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const int layer = model.parameters()[i].layer;
    while (next < buffers.size() && model.buffers()[next].layer < layer) all.push_back(std::move(buffers[next++]));
    all.push_back(std::move(parameters[i]));
  }
  while (next < buffers.size()) all.push_back(std::move(buffers[next++]));
  return all;
}

StateDict::Tensors StateDict::gradients() { return parts(Arena::gradient, 0); }
StateDict::Tensors StateDict::optimizer_slot(std::size_t slot) { return parts(Arena::state, slot); }

StateDict::Tensors StateDict::parts(Arena arena, std::size_t slot) {
  team_.wait_for_all();
  Tensors tensors;
  team_.on_first([&](Replica& first, GradientSync&) {
    const bool scaled = arena == Arena::gradient && setup_.scales_loss();
    const double factor = scaled ? 1.0 / static_cast<double>(first.read_scaler().last_scale) : 1.0;
    const auto whole = assemble(first, arena, slot);
    tensors = export_entries(first, static_cast<const std::byte*>(whole->data()), factor);
  });
  return tensors;
}

StateDict::Tensors StateDict::export_entries(Replica& first, const std::byte* arena, double factor) {
  Tensors tensors;
  int index = 0;
  for (const ParameterEntry& entry : setup_.table->entries()) {
    Tensor tensor(entry.shape, setup_.table->type());
    first.export_entry(index++, arena, tensor);
    if (factor != 1) multiply(tensor, factor);
    tensors.emplace_back(entry.name, std::move(tensor));
  }
  first.compute().synchronize();
  return tensors;
}

std::unique_ptr<kernels::Buffer> StateDict::assemble(Replica& first, Arena arena, std::size_t slot) {
  auto whole = first.context().allocate(setup_.table->bytes());
  auto* const to = static_cast<std::byte*>(whole->data());
  const std::size_t element = setup_.element_bytes();
  for (std::size_t rank = 0; rank < team_.replicas.size(); ++rank) {
    LocalOptimizer& optimizer = team_.gradient_syncs[rank]->optimizer();
    for (const LocalOptimizer::Part& part : optimizer.parts()) {
      if (part.range.size() == 0) continue;
      const std::size_t begin = static_cast<std::size_t>(part.range.begin) * element;
      const std::byte* const from =
          arena == Arena::gradient ? team_.replicas[rank]->gradients() + begin : optimizer.state(slot, part);
      first.compute().copy(to + begin, from, static_cast<std::size_t>(part.range.size()) * element);
    }
    if (setup_.options.reduce == Reduce::all_reduce) break;  // every replica has the whole arena
  }
  return whole;
}

int StateDict::entry_of(const std::string& name, const Tensor& tensor) const {
  const std::string& model = setup_.model.name();
  for (std::size_t i = 0; i < setup_.table->entries().size(); ++i) {
    const ParameterEntry& entry = setup_.table->entries()[i];
    if (entry.name != name) continue;
    if (tensor.shape() != entry.shape)
      throw Error(ErrorCode::data, "parameter '" + name + "' has shape " + to_string(entry.shape) + " in model '" +
                                       model + "', not " + to_string(tensor.shape()));
    if (tensor.dtype() != DType::f32 && tensor.dtype() != DType::f64)
      throw Error(ErrorCode::data,
                  "parameter '" + name + "' is of type " + to_string(tensor.dtype()) + ", not float32");
    return static_cast<int>(i);
  }
  throw Error(ErrorCode::data, "model '" + model + "' has no parameter '" + name + "'");
}

std::vector<StateDict::Found> StateDict::find(const Tensors& tensors) const {
  std::vector<Found> found;
  for (const auto& [name, tensor] : tensors) found.push_back({entry_of(name, tensor), &tensor});
  return found;
}

StateDict::FoundWeights StateDict::find_weights(const Tensors& tensors) const {
  FoundWeights found;
  for (const auto& [name, tensor] : tensors) {
    if (const BufferSpec* buffer = find_buffer(name)) {
      require_fit(*buffer, tensor);
      found.buffers.emplace_back(buffer, &tensor);
    } else {
      found.parameters.push_back({entry_of(name, tensor), &tensor});
    }
  }
  return found;
}

void StateDict::check_weights(const Tensors& tensors) const { find_weights(tensors); }

void StateDict::set_weights(const Tensors& tensors) {
  const FoundWeights found = find_weights(tensors);
  team_.wait_for_all();
  gather_values();  // `tensors` may contain only some of them
  team_.on_first([&](Replica& first, GradientSync&) {
    for (const Found& one : found.parameters) first.import_entry(one.entry, *one.tensor, first.values());
    for (const auto& [buffer, tensor] : found.buffers) import_buffer(first, *buffer, *tensor);
  });
  buffers_behind_ = true;
  broadcast_weights();
}

void StateDict::broadcast_weights() {
  team_.on_replicas([](Replica& replica, GradientSync& gradient_sync) {
    gradient_sync.broadcast_weights();
    replica.context().flush();
  });
}

void StateDict::check_slot(const Tensors& tensors) const { find(tensors); }

void StateDict::set_optimizer_slot(std::size_t slot, const Tensors& tensors) {
  const std::vector<Found> found = find(tensors);
  team_.wait_for_all();
  std::unique_ptr<kernels::Buffer> whole;
  team_.on_first([&](Replica& first, GradientSync&) {
    whole = assemble(first, Arena::state, slot);
    for (const Found& one : found) first.import_entry(one.entry, *one.tensor, static_cast<std::byte*>(whole->data()));
    first.compute().synchronize();
  });
  team_.on_replicas([&](Replica& replica, GradientSync& gradient_sync) {
    const std::size_t element = setup_.element_bytes();
    LocalOptimizer& optimizer = gradient_sync.optimizer();
    for (const LocalOptimizer::Part& part : optimizer.parts()) {
      if (part.range.size() == 0) continue;
      const auto begin = static_cast<std::size_t>(part.range.begin) * element;
      replica.compute().copy(optimizer.state(slot, part), static_cast<const std::byte*>(whole->data()) + begin,
                             static_cast<std::size_t>(part.range.size()) * element);
    }
    replica.compute().synchronize();
  });
}

void StateDict::gather_values() {
  team_.on_replicas([](Replica& replica, GradientSync& gradient_sync) {
    gradient_sync.gather_values();
    replica.context().flush();
  });
}

void StateDict::broadcast_buffers() {
  if (!std::exchange(buffers_behind_, false) || setup_.norms.count() == 0 || setup_.size() == 1) return;
  team_.on_replicas([&](Replica& replica, GradientSync&) {
    team_.io_of(replica).broadcast(replica.buffers(), setup_.norms.buffer_size(), setup_.table->type(), 0,
                                   replica.compute());
    replica.context().flush();
  });
}

const BufferSpec* StateDict::find_buffer(const std::string& name) const {
  for (const BufferSpec& buffer : setup_.model.buffers())
    if (buffer.name == name) return &buffer;
  return nullptr;
}

void StateDict::require_fit(const BufferSpec& buffer, const Tensor& tensor) const {
  const bool real = tensor.dtype() == DType::f32 || tensor.dtype() == DType::f64;
  if (tensor.shape() == buffer.shape && (is_counter(buffer) ? tensor.dtype() == DType::i64 : real)) return;
  throw Error(ErrorCode::data, "'" + buffer.name + "' of model '" + setup_.model.name() + "' is " +
                                   to_string(buffer.type) + " of shape " + to_string(buffer.shape) + ", not " +
                                   to_string(tensor.dtype()) + " of shape " + to_string(tensor.shape()));
}

void StateDict::import_buffer(Replica& first, const BufferSpec& buffer, const Tensor& tensor) {
  if (is_counter(buffer)) {
    batches_tracked_ = *tensor.data<std::int64_t>();
    return;
  }
  const DType type = setup_.table->type();
  Tensor same(buffer.shape, type);
  if (tensor.dtype() == DType::f32)
    type == DType::f32 ? convert<float, float>(tensor, same) : convert<float, double>(tensor, same);
  else
    type == DType::f32 ? convert<double, float>(tensor, same) : convert<double, double>(tensor, same);
  const std::size_t offset = static_cast<std::size_t>(place_of(setup_.norms, buffer)) * size_of(type);
  first.compute().copy(first.buffers() + offset, same.raw(), same.bytes());
  first.compute().synchronize();
}

StateDict::Tensors StateDict::export_buffers() {
  Tensors tensors;
  team_.on_first([&](Replica& first, GradientSync&) {
    for (const BufferSpec& buffer : setup_.model.buffers()) {
      Tensor tensor(buffer.shape, is_counter(buffer) ? DType::i64 : setup_.table->type());
      if (is_counter(buffer)) {
        *tensor.data<std::int64_t>() = batches_tracked_;
      } else {
        const std::size_t offset = static_cast<std::size_t>(place_of(setup_.norms, buffer)) * setup_.element_bytes();
        first.compute().download(tensor.raw(), first.buffers() + offset, tensor.bytes());
      }
      tensors.emplace_back(buffer.name, std::move(tensor));
    }
  });
  return tensors;
}

}  // namespace dp::engine
