// Import and export of weights, gradients and optimizer state, as host tensors in PyTorch's layout.
#include <algorithm>
#include <cstring>

#include "dp/error.h"
#include "engine/base/crc32c.h"
#include "engine/parallel/data_parallel_state.h"

namespace dp {

using engine::GradientSync;
using engine::LocalOptimizer;
using engine::Replica;
using NamedTensor = std::pair<std::string, Tensor>;

namespace {

template <typename T>
void multiply_by(Tensor& tensor, double factor) {
  for (T& value : tensor.span<T>()) value = static_cast<T>(static_cast<double>(value) * factor);
}
void multiply(Tensor& tensor, double factor) {
  tensor.dtype() == DType::f64 ? multiply_by<double>(tensor, factor) : multiply_by<float>(tensor, factor);
}

}  // namespace

void DataParallel::State::wait_for_all() {
  on_replicas([](Replica& replica, GradientSync& gradient_sync) {
    gradient_sync.synchronize();
    replica.compute().synchronize();
  });
}

// Gathers the float32 weights, which only their owners have updated in the last step.
void DataParallel::State::gather_values() {
  on_replicas([](Replica& replica, GradientSync& gradient_sync) {
    gradient_sync.gather_values();
    replica.context().flush();
  });
}

// Copies the parts of an arena from the replicas that own them into one buffer on the master.
std::unique_ptr<kernels::Buffer> DataParallel::State::assemble(Replica& master, Arena arena, std::size_t slot) {
  auto whole = master.context().allocate(table->bytes());
  auto* to = static_cast<std::byte*>(whole->data());
  const std::size_t element = size_of(table->type());
  for (int rank = 0; rank < pool.size(); ++rank) {
    LocalOptimizer& optimizer = gradient_syncs[static_cast<std::size_t>(rank)]->optimizer();
    for (const LocalOptimizer::Part& part : optimizer.parts()) {
      const std::size_t begin = static_cast<std::size_t>(part.range.begin) * element;
      const std::byte* from = arena == Arena::gradient ? replicas[static_cast<std::size_t>(rank)]->gradients() + begin
                                                       : optimizer.state(slot, part);
      if (part.range.size() != 0)
        master.compute().copy(to + begin, from, static_cast<std::size_t>(part.range.size()) * element);
    }
    if (options.reduce == Reduce::all_reduce) break;  // every replica has the whole arena
  }
  return whole;
}

std::vector<NamedTensor> DataParallel::State::export_arena(Arena arena, std::size_t slot) {
  wait_for_all();
  if (arena == Arena::value) gather_values();
  std::vector<NamedTensor> tensors;
  on_first([&](Replica& master, GradientSync&) {
    std::unique_ptr<kernels::Buffer> assembled;
    const double unscaled =
        arena == Arena::gradient && scales_loss() ? 1.0 / static_cast<double>(master.read_scaler().last_scale) : 1.0;
    const std::byte* source = master.values();
    if (arena != Arena::value) {
      assembled = assemble(master, arena, slot);
      source = static_cast<const std::byte*>(assembled->data());
    }
    for (std::size_t i = 0; i < table->entries().size(); ++i) {
      const engine::ParameterEntry& entry = table->entries()[i];
      Tensor tensor(entry.shape, table->type());
      master.export_entry(static_cast<int>(i), source, tensor);
      if (unscaled != 1.0) multiply(tensor, unscaled);
      tensors.emplace_back(entry.name, std::move(tensor));
    }
    master.compute().synchronize();
  });
  return tensors;
}

void DataParallel::State::import_arena(Arena arena, const std::vector<NamedTensor>& tensors, std::size_t slot) {
  std::vector<std::pair<int, const Tensor*>> found;
  std::vector<std::pair<const BufferSpec*, const Tensor*>> buffers;
  for (const auto& [name, tensor] : tensors) {
    if (const BufferSpec* buffer = arena == Arena::value ? find_buffer(name) : nullptr) {
      require_fit(*buffer, tensor);
      buffers.emplace_back(buffer, &tensor);
      continue;
    }
    int index = -1;
    for (std::size_t i = 0; i < table->entries().size(); ++i)
      if (table->entries()[i].name == name) index = static_cast<int>(i);
    if (index < 0) throw Error(ErrorCode::data, "model '" + model.name() + "' has no parameter '" + name + "'");
    if (tensor.shape() != table->entry(index).shape)
      throw Error(ErrorCode::data, "parameter '" + name + "' has shape " + to_string(table->entry(index).shape) +
                                       " in model '" + model.name() + "', not " + to_string(tensor.shape()));
    if (tensor.dtype() != DType::f32 && tensor.dtype() != DType::f64)
      throw Error(ErrorCode::data,
                  "parameter '" + name + "' is of type " + to_string(tensor.dtype()) + ", not float32");
    found.emplace_back(index, &tensor);
  }
  forward_rows = 0;
  wait_for_all();
  if (arena == Arena::value) {
    gather_values();  // `tensors` may contain only some of them
    on_first([&](Replica& master, GradientSync&) {
      for (const auto& [index, tensor] : found) master.import_entry(index, *tensor, master.values());
      for (const auto& [buffer, tensor] : buffers) import_buffer(master, *buffer, *tensor);
    });
    buffers_behind = true;
    on_replicas([](Replica& replica, GradientSync& gradient_sync) {
      gradient_sync.broadcast_weights();
      replica.context().flush();
    });
    return;
  }
  std::unique_ptr<kernels::Buffer> whole;
  on_first([&](Replica& master, GradientSync&) {
    whole = assemble(master, arena, slot);
    for (const auto& [index, tensor] : found)
      master.import_entry(index, *tensor, static_cast<std::byte*>(whole->data()));
    master.compute().synchronize();
  });
  on_replicas([&](Replica& replica, GradientSync& gradient_sync) {
    const std::size_t element = size_of(table->type());
    LocalOptimizer& optimizer = gradient_sync.optimizer();
    for (const LocalOptimizer::Part& part : optimizer.parts())
      if (part.range.size() != 0)
        replica.compute().copy(
            optimizer.state(slot, part),
            static_cast<const std::byte*>(whole->data()) + static_cast<std::size_t>(part.range.begin) * element,
            static_cast<std::size_t>(part.range.size()) * element);
    replica.compute().synchronize();
  });
}

// In the order of a state dict: each layer's parameters, then its buffers.
std::vector<NamedTensor> DataParallel::weights() const {
  std::vector<NamedTensor> parameters = state_->export_arena(State::Arena::value);
  if (model().buffers().empty()) return parameters;
  std::vector<NamedTensor> buffers = state_->export_buffers(), all;
  std::size_t next = 0;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const int layer = model().parameters()[i].layer;
    while (next < buffers.size() && model().buffers()[next].layer < layer) all.push_back(std::move(buffers[next++]));
    all.push_back(std::move(parameters[i]));
  }
  while (next < buffers.size()) all.push_back(std::move(buffers[next++]));
  return all;
}
std::vector<NamedTensor> DataParallel::gradients() const { return state_->export_arena(State::Arena::gradient); }

OptimizerState DataParallel::optimizer_state() const {
  State& s = *state_;
  OptimizerState state;
  if (!s.state_rule) return state;
  state.optimizer = kernels::name_of(*s.state_rule);
  const auto slots = engine::slot_names(*s.state_rule);
  for (std::size_t slot = 0; slot < slots.size(); ++slot)
    for (auto& [name, tensor] : s.export_arena(State::Arena::state, slot))
      state.tensors.emplace_back(std::string(slots[slot]) + "." + name, std::move(tensor));
  state.updates = s.updates - s.skipped_updates();
  return state;
}

std::int64_t DataParallel::State::skipped_updates() {
  kernels::StepResults results;
  on_first([&](Replica& replica, GradientSync& gradient_sync) {
    gradient_sync.synchronize();
    replica.compute().download(&results, replica.results(), sizeof results);
    replica.compute().synchronize();
  });
  return results.skipped_steps;
}

void DataParallel::set_optimizer_state(const OptimizerState& state) {
  State& s = *state_;
  if (state.optimizer.empty()) return;
  const kernels::UpdateRule rule = engine::rule_named(state.optimizer);
  const auto slots = engine::slot_names(rule);
  std::vector<std::vector<NamedTensor>> tensors(slots.size());  // of each slot
  for (const auto& [name, tensor] : state.tensors) {
    const std::size_t dot = name.find('.');
    const auto slot = std::find(slots.begin(), slots.end(), std::string_view(name).substr(0, dot));
    if (dot == std::string::npos || slot == slots.end())
      throw Error(ErrorCode::data, "optimizer '" + state.optimizer + "' has no state '" + name + "'");
    tensors[static_cast<std::size_t>(slot - slots.begin())].emplace_back(name.substr(dot + 1), tensor);
  }
  s.reserve_state_of(rule);
  for (std::size_t slot = 0; slot < slots.size(); ++slot) s.import_arena(State::Arena::state, tensors[slot], slot);
  if (s.options.process_group)
    s.on_replicas([](Replica&, GradientSync& gradient_sync) { gradient_sync.broadcast_state(); });
  s.updates = state.updates + s.skipped_updates();
}

void DataParallel::set_weights(const std::vector<NamedTensor>& tensors) {
  state_->import_arena(State::Arena::value, tensors);
  state_->restart_average();
}

std::int64_t DataParallel::step_count() const { return state_->step + (state_->begun ? 1 : 0); }
void DataParallel::set_step_count(std::int64_t steps) {
  state_->step = steps;
  state_->begun = false;
}

bool DataParallel::replicas_identical() const {
  State& s = *state_;
  s.wait_for_all();
  s.gather_values();
  // With mixed precision, also compares the weights in the activation type.
  const std::size_t low = engine::Replica::low_bytes(*s.table, s.replicas.front()->context());
  const std::size_t bytes = s.table->bytes();
  std::vector<std::vector<std::byte>> copies(s.replicas.size(), std::vector<std::byte>(bytes + low));
  s.on_replicas([&](Replica& replica, GradientSync&) {
    auto& copy = copies[s.local(replica)];
    replica.compute().download(copy.data(), replica.values(), bytes);
    if (low != 0) replica.compute().download(copy.data() + bytes, replica.low_value(0), low);
  });
  if (s.options.process_group) {
    const auto digests = s.of_all_ranks(crc32c(copies.front()));
    return std::equal(digests.begin() + 1, digests.end(), digests.begin());
  }
  for (const auto& copy : copies)
    if (std::memcmp(copy.data(), copies.front().data(), copy.size()) != 0) return false;
  return true;
}

}  // namespace dp
