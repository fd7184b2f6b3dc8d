#include "engine/state/snapshot.h"

#include <algorithm>
#include <utility>

#include "kernels/device/host/cores.h"

namespace dp::engine {
namespace {

Tensor* named(NamedTensors::value_type& tensor, std::string name) {
  if (tensor.first != name) tensor = {std::move(name), {}};
  return &tensor.second;
}

// Keeps its memory if that fits and nothing else refers to it.
void ensure_tensor(Tensor& tensor, const Shape& shape, DType type) {
  if (tensor.shape() != shape || tensor.dtype() != type || tensor.storage().use_count() != 1)
    tensor = Tensor(shape, type);
}

}  // namespace

Snapshot::Snapshot(Team& team, StateDict& state_dict, ReplicatedOptimizer& optimizer, Checkpoint& to)
    : team_(team), state_dict_(state_dict), stages_(team.setup.stages.size()) {
  team_.copies_held.wait(true);
  team_.wait_for_all();
  state_dict_.all_gather_values();
  const auto& parameters = team_.setup.model.parameters();
  const MovingAverage* const average = worker(0).moving_average.get();
  const std::vector<std::string_view> slots = optimizer.slots();
  const std::size_t weights = parameters.size() + team_.setup.model.buffers().size();
  to.weights.resize(weights);
  add_weights(to.weights, /*average=*/false);
  to.average.resize(average != nullptr ? weights : 0);
  if (average != nullptr) add_weights(to.average, /*average=*/true);
  to.average_updates = average != nullptr ? average->updates() : 0;
  optimizer.describe(to.optimizer);
  to.optimizer.tensors.resize(slots.size() * parameters.size());
  for (std::size_t slot = 0; slot < slots.size(); ++slot)
    add_slot(to.optimizer.tensors, slot, std::string(slots[slot]) + ".", slot * parameters.size());
  const bool on_host = worker(0).context().host_accessible();
  team_.on_first_replica([&](Worker& first) {
    Stage& stage = stages_[static_cast<std::size_t>(first.stage())];
    if (!on_host && (first.rank() != 0 || copy_on_device(first, stage))) return;
    // The forward pass of the next step changes running statistics.
    for (const BufferCopy& copy : stage.buffers) *copy.to = state_dict_.buffer(first, *copy.spec, copy.statistics);
    if (!on_host) copy_parameters(stage, first.device);
  });
  holds_updates_ = on_host;
  holds_copies_ = std::ranges::any_of(stages_, [](const Stage& stage) { return stage.copy != nullptr; });
  team_.updates_held.store(holds_updates_);
  team_.copies_held.store(holds_copies_);
}

void Snapshot::add_weights(NamedTensors& to, bool average) {
  std::size_t next = 0;
  for (std::size_t stage = 0; stage < stages_.size(); ++stage) {
    const Worker& first = worker(stage);
    const ParameterTable& table = first.arenas.table();
    const std::byte* const values = average ? first.moving_average->values() : first.arenas.values();
    const std::byte* const statistics =
        average ? first.moving_average->statistics() : first.arenas.running_statistics();
    parts_.push_back({{{0, table.size()}, values, /*near=*/true}});
    stages_[stage].arenas.push_back(&parts_.back());
    for_each_weight(
        team_.setup.stages[stage].model,
        [&](int entry) {
          stages_[stage].parameters.push_back(
              {&table, entry, &parts_.back(), named(to[next++], table.entry(entry).name)});
        },
        [&](const BufferSpec& spec) {
          stages_[stage].buffers.push_back({&spec, statistics, named(to[next++], spec.name)});
        });
  }
}

void Snapshot::add_slot(NamedTensors& to, std::size_t slot, const std::string& prefix, std::size_t next) {
  for (std::size_t stage = 0; stage < stages_.size(); ++stage) {
    const ParameterTable& table = worker(stage).arenas.table();
    parts_.push_back(state_dict_.slot_parts(static_cast<int>(stage), slot));
    stages_[stage].arenas.push_back(&parts_.back());
    for (int entry = 0; entry < static_cast<int>(table.entries().size()); ++entry)
      stages_[stage].parameters.push_back(
          {&table, entry, &parts_.back(), named(to[next++], prefix + table.entry(entry).name)});
  }
}

// Returns false if the device has no room for the copy.
bool Snapshot::copy_on_device(Worker& first, Stage& stage) {
  const ParameterTable& table = first.arenas.table();
  const std::size_t statistics = team_.setup.sizes_of(first.rank(), first.stage(), first.context()).running_statistics;
  const std::size_t of_average = first.moving_average != nullptr ? aligned(statistics) : 0;
  const std::size_t bytes = DeviceCopy::bytes(table, stage.arenas.size(), aligned(statistics) + of_average);
  if (first.copy == nullptr || first.copy->bytes() < bytes) {
    if (first.copy != nullptr) first.device.subtract_bytes(first.copy->bytes(), &MemoryUse::snapshot);
    first.copy.reset();
    first.copy = DeviceCopy::make(first.device, table, bytes, team_.pool.abort_flag());
    if (first.copy == nullptr) return false;
    first.device.add_bytes(bytes, &MemoryUse::snapshot, /*replaces_memory=*/false);
  }
  stage.copy = first.copy.get();
  stage.copy->restart();
  const std::size_t element = size_of(table.type());
  for (std::vector<ArenaPart>* const parts : stage.arenas) {
    std::byte* const whole = stage.copy->take(table.bytes());
    for (const ArenaPart& part : *parts)
      first.compute().copy(whole + static_cast<std::size_t>(part.range.begin) * element, part.data,
                           static_cast<std::size_t>(part.range.size()) * element);
    *parts = {{{0, table.size()}, whole, /*near=*/true}};
  }
  const auto copy_statistics = [&](const std::byte* from) {
    std::byte* const to = stage.copy->take(statistics);
    first.compute().copy(to, from, statistics);
    for (BufferCopy& buffer : stage.buffers)
      if (buffer.statistics == from) buffer.statistics = to;
  };
  if (statistics != 0) copy_statistics(first.arenas.running_statistics());
  if (of_average != 0) copy_statistics(first.moving_average->statistics());
  for (const BufferCopy& buffer : stage.buffers)
    if (StateDict::is_counter(*buffer.spec)) *buffer.to = state_dict_.buffer(first, *buffer.spec, nullptr);
  first.compute().synchronize();
  return true;
}

void Snapshot::copy_parameters(const Stage& stage, OpenDevice& device) {
  for (const ParameterCopy& copy : stage.parameters) {
    ensure_tensor(*copy.to, copy.table->entry(copy.entry).shape, copy.table->type());
    export_parameter(device, *copy.table, copy.entry, *copy.parts, *copy.to);
  }
}

void Snapshot::read(const Stage& stage) {
  for (const ParameterCopy& copy : stage.parameters) {
    ensure_tensor(*copy.to, copy.table->entry(copy.entry).shape, copy.table->type());
    stage.copy->read(copy.entry, copy.parts->front().data, *copy.to);
  }
  const auto number = static_cast<int>(&stage - stages_.data());
  for (const BufferCopy& copy : stage.buffers) {
    if (StateDict::is_counter(*copy.spec)) continue;
    ensure_tensor(*copy.to, copy.spec->shape, team_.setup.type());
    stage.copy->read(state_dict_.place_of(number, *copy.spec, copy.statistics), *copy.to);
  }
}

void Snapshot::finish() try {
  const struct AtEnd {
    Snapshot& snapshot;
    ~AtEnd() { snapshot.release(); }
  } at_end{*this};
  const kernels::WithoutTeam alone;
  if (holds_updates_) {
    const Device device = worker(0).context().device();
    OpenDevice own(kernels::backend(device.kind).open(device, {}));
    for (const Stage& stage : stages_) copy_parameters(stage, own);
  } else if (holds_copies_) {
    for (const Stage& stage : stages_)
      if (stage.copy != nullptr) read(stage);
  }
} catch (const kernels::Aborted&) {
  throw Error(ErrorCode::device, "the copy of the weights was not finished, because a replica has failed");
}

void Snapshot::release() {
  for (auto& [holds, held] : {std::pair(&holds_updates_, &team_.updates_held), {&holds_copies_, &team_.copies_held}}) {
    if (!std::exchange(*holds, false)) continue;
    held->store(false);
    held->notify_all();
  }
}

}  // namespace dp::engine
