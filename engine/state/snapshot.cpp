#include "engine/state/snapshot.h"

#include <utility>

#include "kernels/device/host/cores.h"

namespace dp::engine {
namespace {

Tensor* named(NamedTensors::value_type& tensor, std::string name) {
  if (tensor.first != name) tensor = {std::move(name), {}};
  return &tensor.second;
}

}  // namespace

Snapshot::Snapshot(Team& team, StateDict& state_dict, ReplicatedOptimizer& optimizer, Checkpoint& to)
    : team_(team), state_dict_(state_dict), stages_(team.setup.stages.size()) {
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
  holds_updates_ = worker(0).context().host_accessible();
  team_.on_first_replica([&](Worker& first) {
    const Stage& stage = stages_[static_cast<std::size_t>(first.stage())];
    // The forward pass of the next step changes running statistics.
    for (const BufferCopy& copy : stage.buffers) *copy.to = state_dict_.buffer(first, *copy.spec, copy.statistics);
    if (!holds_updates_) copy_parameters(stage, first.device);
  });
  if (holds_updates_) team_.updates_held.store(true);
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
    for (int entry = 0; entry < static_cast<int>(table.entries().size()); ++entry)
      stages_[stage].parameters.push_back(
          {&table, entry, &parts_.back(), named(to[next++], prefix + table.entry(entry).name)});
  }
}

void Snapshot::copy_parameters(const Stage& stage, OpenDevice& device) {
  for (const ParameterCopy& copy : stage.parameters) {
    const ParameterEntry& entry = copy.table->entry(copy.entry);
    Tensor& to = *copy.to;
    if (to.shape() != entry.shape || to.dtype() != copy.table->type() || to.storage().use_count() != 1)
      to = Tensor(entry.shape, copy.table->type());
    export_parameter(device, *copy.table, copy.entry, *copy.parts, to);
  }
}

void Snapshot::finish() {
  if (!holds_updates_) return;
  const struct AtEnd {
    Snapshot& snapshot;
    ~AtEnd() { snapshot.release(); }
  } at_end{*this};
  const kernels::WithoutTeam alone;
  const Device device = worker(0).context().device();
  OpenDevice own(kernels::backend(device.kind).open(device, {}));
  for (const Stage& stage : stages_) copy_parameters(stage, own);
}

void Snapshot::release() {
  if (!std::exchange(holds_updates_, false)) return;
  team_.updates_held.store(false);
  team_.updates_held.notify_all();
}

}  // namespace dp::engine
