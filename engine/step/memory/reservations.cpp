#include "engine/step/memory/reservations.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>

#include "dp/memory.h"
#include "engine/step/memory/memory_room.h"

namespace dp::engine {
namespace {

struct Share {
  std::size_t need = 0, room = std::numeric_limits<std::size_t>::max(), replicas = 0;  // of one device
};

// The needs of all ranks on this rank's host: they share its memory.
Share of_host(const ProcessGroup& group, const std::vector<Share>& ranks) {
  Share all;
  for (int rank = 0; rank < group.size(); ++rank) {
    if (group.host_of(rank) != group.host_of(group.rank())) continue;
    const Share& one = ranks[static_cast<std::size_t>(rank)];
    all = {all.need + one.need, std::min(all.room, one.room), all.replicas + 1};
  }
  return all;
}

std::string counted(std::size_t count, const char* what = "replica") {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

}  // namespace

void Reservations::require_within_limit(const std::vector<std::size_t>& needs, const std::string& what,
                                        const FitsText& fits) const {
  const std::optional<std::size_t> limit = replica_limit();
  for (std::size_t i = 0; limit && i < needs.size(); ++i) {
    const std::size_t held = team_.workers[i] ? team_.workers[i]->device.memory_use().total() : 0;
    const std::size_t room = *limit - std::min(*limit, held);
    if (setup_.options.devices[i].kind == DeviceKind::cuda || needs[i] <= room) continue;
    throw Error(ErrorCode::device,
                fmt::format("out of memory: {} need {} on device {}, but DP_MEMORY_LIMIT leaves {}; {}, or use more "
                            "pipeline stages",
                            what, in_units(needs[i]), i, in_units(room), fits(i, room, 1)));
  }
}

// With a process group, values_of_all_ranks() ensures that all ranks read the free memory before any of them allocates.
void Reservations::require_fit(const std::vector<std::size_t>& needs, bool together, const std::string& what,
                               const FitsText& fits) {
  require_within_limit(needs, what, fits);
  std::vector<std::optional<Room>> rooms(needs.size());
  team_.run([&](int r) {  // on the replica's thread: the query makes its GPU the current device
    rooms[static_cast<std::size_t>(r)] = room_on(setup_.options.devices[static_cast<std::size_t>(r)]);
  });
  for (std::size_t first = 0; first < needs.size(); ++first) {
    const Device device = setup_.options.devices[first];
    const auto begin = setup_.options.devices.begin(), here = begin + static_cast<std::ptrdiff_t>(first);
    if (std::find(begin, here, device) != here) continue;
    Share share;
    for (std::size_t r = first; r < needs.size(); ++r)
      if (setup_.options.devices[r] == device) share.need += needs[r], ++share.replicas;
    const auto& room = rooms[first];
    if (room) share.room = room->bytes;
    if (setup_.options.process_group && together) {
      const std::vector<Share> ranks = team_.values_of_all_ranks(share);
      if (device.kind != DeviceKind::cuda) share = of_host(*setup_.options.process_group, ranks);
    }
    if (share.need <= share.room) continue;
    throw Error(ErrorCode::device,
                fmt::format("out of memory: {} of {} need {}, but {} are free ({}); {}", what,
                            counted(share.replicas, setup_.pipelined() ? "stage" : "replica"), in_units(share.need),
                            in_units(share.room), room ? room->limit : "another rank",
                            fits(first, share.room, share.replicas)));
  }
}

// With a process group the size is not rounded.
std::size_t Reservations::occupied(std::size_t bytes) const {
  return setup_.options.process_group ? bytes : occupied_bytes(setup_.options.devices.front(), bytes);
}

std::size_t Reservations::added(std::size_t held, std::size_t needed) const {
  return needed > held ? occupied(needed) - occupied(held) : 0;
}

void Reservations::require_room_for_weights(const kernels::Context& context) {
  std::vector<std::size_t> stages;
  for (int stage = 0; stage < setup_.stage_count(); ++stage) {
    const Arenas::Sizes sizes = setup_.sizes_of(/*rank=*/0, stage, context);
    std::size_t& each = stages.emplace_back(0);
    for (const std::size_t bytes :
         {sizes.values, sizes.low_values, sizes.gradients, sizes.running_statistics, sizes.moments})
      each += occupied(bytes);
  }
  std::vector<std::size_t> needs;
  for (std::size_t i = 0; i < setup_.options.devices.size(); ++i) needs.push_back(stages[i % stages.size()]);
  require_fit(
      needs, /*together=*/true, "weights, gradients and statistics", [&](std::size_t, std::size_t room, std::size_t) {
        const std::size_t fit = usable_part(room) / std::accumulate(stages.begin(), stages.end(), std::size_t{0});
        return fit == 0 ? "not even one fits: use a smaller model" : "use no more than " + counted(fit);
      });
}

template <typename F>
void Reservations::by_stage(F&& f) {
  for (int stage = 0; stage < setup_.stage_count(); ++stage)
    team_.on_workers([&](Worker& worker) {
      if (worker.stage() == stage) f(worker);
    });
}

PlanOptions Reservations::with_input(const Worker& worker, PlanOptions options) const {
  if (worker.stage() > 0) options.input = team_.workers[worker.number - 1]->runner.find_plan(options)->output().desc;
  return options;
}

std::size_t Reservations::missing_bytes(Worker& worker, const std::vector<BatchKind>& batches) const {
  std::map<std::int64_t, std::size_t> held;  // of the folded weights, by rows
  const BatchMemory needed =
      memory_of_batches(setup_, worker.rank(), worker.stage(), batches, [&](const PlanOptions& options) {
        const Plan& plan = worker.runner.plan_without_memory(with_input(worker, options));
        if (!options.training) held[options.batch] = plan.folded_bytes() - worker.runner.missing_folded_bytes(plan);
        return PlanBytes::of(plan);
      });
  std::size_t folded = 0;
  for (const auto& [rows, bytes] : needed.folded) folded += occupied(bytes - held[rows]);
  return added(worker.runner.activation_arena() ? worker.runner.activation_arena()->bytes() : 0,
               needed.activation_arena.total(worker.options)) +
         folded + missing_bytes_in_links(worker.number, needed.border_bytes);
}

std::size_t Reservations::missing_bytes_in_links(std::size_t number, const BorderBytes& bytes) const {
  using enum kernels::Link::End;
  const bool two_queues = kernels::backend(setup_.options.devices.front().kind).links_have_two_queues();
  std::size_t sum = 0;
  const auto add = [&](const auto& links, std::size_t link, kernels::Link::End end, std::size_t tensor) {
    if (tensor > 0 && (end == sender || two_queues))
      sum += added(links[link]->held(end), kernels::Link::kSlots * tensor);
  };
  add(team_.forward_links, number, sender, bytes.output);
  add(team_.backward_links, number, receiver, bytes.output_grad);
  add(team_.forward_links, number - 1, receiver, bytes.input);
  add(team_.backward_links, number - 1, sender, bytes.input_grad);
  return sum;
}

void Reservations::require_room(const std::vector<BatchKind>& batches, const std::optional<Optimizer>& optimizer,
                                bool together) {
  std::vector<std::size_t> needs(team_.workers.size());
  by_stage([&](Worker& worker) {
    const LocalOptimizer& local = worker.gradient_sync->optimizer();
    const std::size_t state = optimizer ? local.bytes_for(kind_of(*optimizer)) : 0;
    needs[worker.number] = missing_bytes(worker, batches) + added(local.held_bytes(), state);
  });
  std::int64_t rows = 0;
  for (const BatchKind& batch : batches) rows = std::max(rows, batch.rows);
  require_fit(
      needs, together, fmt::format("a batch of {}: activations and optimizer state", rows),
      [&](std::size_t device, std::size_t room, std::size_t sharing) {
        // Each replica's share if the free memory is divided equally.
        const std::size_t each = team_.workers[device]->device.memory_use().total() + usable_part(room) / sharing;
        const std::size_t rounding = setup_.options.devices.front().kind == DeviceKind::cuda ? 0 : kEstimateRounding;
        const std::int64_t fits = largest_batch(setup_.model, setup_.options, each - std::min(each, rounding),
                                                optimizer.value_or(Sgd{.momentum = 0.9f}));
        if (fits == 0) return std::string("use fewer replicas: no batch fits");
        return fmt::format("a batch of {} fits", std::min(fits, rows - 1));
      });
}

void Reservations::allocate(Worker& worker, const BatchKind& batch) {
  const auto row = static_cast<std::size_t>(setup_.model.output().numel()) * setup_.element_bytes();
  const bool resident = batch.set != nullptr;
  for_each_plan(setup_, batch, worker.rank(), worker.stage(), [&](const PlanOptions& plan) {
    allocate_links(worker, worker.runner.plan(with_input(worker, plan)));
    if (resident && worker.stage() == 0) worker.runner.upload_images({batch.set, batch.augment}, plan.batch);
    worker.runner.reserve_copies(plan.batch, resident);
    worker.context().reserve_copies(batch.gathers_logits ? static_cast<std::size_t>(plan.batch) * row : 0);
  });
  // Bytes of the largest call of compute_communicator.
  const Arenas::Sizes sizes = setup_.sizes_of(worker.rank(), worker.stage(), worker.context());
  std::size_t exchanged = sizes.running_statistics + sizes.moments;
  for (int micro = 0; micro < batch.micro_batches && batch.gathers_logits; ++micro) {
    const std::int64_t rows = batch.micro_rows(micro);
    if (rows == 0) continue;
    exchanged = std::max(exchanged, static_cast<std::size_t>(rows) * row);
    if (worker.rank() != 0) continue;
    worker.context().reserve_copies(static_cast<std::size_t>(rows) * setup_.target_bytes(true));
    worker.gathered_loss.reserve(rows);
    if (setup_.options.loss == LossAt::gathered) worker.gathered_loss.reserve_op(rows);
  }
  if (worker.compute_communicator) worker.compute_communicator->reserve(exchanged);
}

void Reservations::allocate_links(Worker& worker, const Plan& plan) {
  using enum kernels::Link::End;
  const std::size_t number = worker.number;
  const auto reserve = [&](kernels::Link& link, const Border& sent, Worker& to) {
    const std::size_t before[] = {link.held(sender), link.held(receiver)};
    link.reserve(sent.desc.layout.bytes);
    if (link.held(sender) != before[0]) worker.device.add_bytes(link.held(sender) - before[0], &MemoryUse::other);
    if (link.held(receiver) != before[1]) to.device.add_bytes(link.held(receiver) - before[1], &MemoryUse::other);
  };
  if (!setup_.is_last(worker.stage())) reserve(*team_.forward_links[number], plan.output(), *team_.workers[number + 1]);
  if (plan.options().training && worker.stage() > 0)
    reserve(*team_.backward_links[number - 1], plan.input_grad(), *team_.workers[number - 1]);
}

void Reservations::allocate(const std::vector<BatchKind>& batches) {
  if (setup_.pipelined()) team_.wait_for_all();  // allocate() may replace the links' memory; they must be empty
  by_stage([&](Worker& worker) {
    for (const BatchKind& batch : batches) allocate(worker, batch);
  });
  allocated_.insert(batches.begin(), batches.end());
}

void Reservations::reserve(const BatchKind& batch) {
  if ((setup_.replica_count() == 1 && !setup_.pipelined()) || allocated_.contains(batch)) return;
  require_room({batch}, /*optimizer=*/{}, /*together=*/false);
  allocate({batch});
}

}  // namespace dp::engine
