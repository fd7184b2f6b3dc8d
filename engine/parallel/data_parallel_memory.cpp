// Checks memory before it is allocated: compares what all replicas on a device are about to allocate with the device's
// free memory. Only certain allocations count, with their exact sizes from the plans. A request that fits is therefore
// never refused.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>

#include "dp/error.h"
#include "engine/parallel/data_parallel_state.h"
#include "engine/replica/memory_room.h"

namespace dp {
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

std::string counted(std::size_t replicas) { return fmt::format("{} replica{}", replicas, replicas == 1 ? "" : "s"); }

}  // namespace

// With a process group, of_all_ranks() ensures that all ranks read the free memory before any of them allocates.
void DataParallel::State::judge_memory(const std::vector<std::size_t>& needs, bool together, const std::string& what,
                                       const FitsText& fits) {
  std::vector<std::optional<engine::Room>> rooms(needs.size());
  run([&](int r) {  // on the replica's thread: the query makes its GPU the current device
    rooms[static_cast<std::size_t>(r)] = engine::room_on(options.devices[static_cast<std::size_t>(r)]);
  });
  for (std::size_t first = 0; first < needs.size(); ++first) {
    const Device device = options.devices[first];
    const auto begin = options.devices.begin(), here = begin + static_cast<std::ptrdiff_t>(first);
    if (std::find(begin, here, device) != here) continue;
    Share share;
    for (std::size_t r = first; r < needs.size(); ++r)
      if (options.devices[r] == device) share.need += needs[r], ++share.replicas;
    const auto& room = rooms[first];
    if (room) share.room = room->bytes;
    if (options.process_group && together) {
      const std::vector<Share> ranks = of_all_ranks(share);
      if (device.kind != DeviceKind::cuda) share = of_host(*options.process_group, ranks);
    }
    if (share.need <= share.room) continue;
    throw Error(ErrorCode::device,
                fmt::format("out of memory: {} of {} need {}, but {} are free ({}); {}", what, counted(share.replicas),
                            engine::in_units(share.need), engine::in_units(share.room),
                            room ? room->limit : "another rank", fits(share.room, share.replicas)));
  }
}

// With a process group the size is not rounded.
std::size_t DataParallel::State::taken(std::size_t bytes) const {
  return options.process_group ? bytes : engine::taken_on(options.devices.front(), bytes);
}

void DataParallel::State::require_room_for_weights(const kernels::Context& context) {
  const auto local = static_cast<std::size_t>(shards() / size());
  const std::size_t each = taken(table->bytes()) + taken(table->bytes() * local) +
                           taken(engine::Replica::low_bytes(*table, context)) + taken(buffer_bytes()) +
                           taken(moments_bytes());
  judge_memory(std::vector<std::size_t>(options.devices.size(), each), /*together=*/true,
               "weights, gradients and statistics", [&](std::size_t room, std::size_t) {
                 const std::size_t fit = engine::promised(room) / each;
                 return fit == 0 ? "not even one fits: use a smaller model" : "use no more than " + counted(fit);
               });
}

std::size_t DataParallel::State::missing_for(engine::Replica& replica, const std::vector<Placed>& batches) const {
  std::size_t most = 0;
  for (const Placed& batch : batches)
    for (int micro = 0; micro < batch.micro_batches; ++micro) {
      const std::int64_t rows = engine::shard_of(batch.rows, micro, batch.micro_batches, Split::balanced).size();
      for (int shard = 0; shard < replica.local_shards(); ++shard)
        if (const std::int64_t own = rows_of(rows, replica, shard).size(); own > 0)
          most = std::max(most, replica.arena_bytes_for(
                                    replica.planned(plan_options(own, batch.training, micro > 0, batch.gathers))));
    }
  const std::size_t held = replica.arena() ? replica.arena()->bytes() : 0;
  return most > held ? taken(most) - taken(held) : 0;
}

void DataParallel::State::require_room_for(const std::vector<Placed>& batches, std::optional<kernels::UpdateRule> state,
                                           bool together) {
  std::vector<std::size_t> needs(replicas.size());
  on_replicas([&](engine::Replica& replica, engine::GradientSync& gradient_sync) {
    needs[local(replica)] =
        missing_for(replica, batches) + (state ? taken(gradient_sync.optimizer().missing_bytes(*state)) : 0);
  });
  std::int64_t rows = 0;
  for (const Placed& batch : batches) rows = std::max(rows, batch.rows);
  judge_memory(needs, together, fmt::format("a batch of {}: activations and optimizer state", rows),
               [&](std::size_t room, std::size_t sharing) {
                 // Each replica's share if the free memory is divided equally.
                 const std::size_t each = replicas.front()->memory_use().total() + engine::promised(room) / sharing;
                 const std::size_t rounding = options.devices.front().kind == DeviceKind::cuda ? 0 : engine::kRounding;
                 const std::int64_t fits = largest_batch(model, options, each - std::min(each, rounding));
                 if (fits == 0) return std::string("use fewer replicas: no batch fits");
                 return fmt::format("a batch of {} fits", std::min(fits, rows - 1));
               });
}

}  // namespace dp
