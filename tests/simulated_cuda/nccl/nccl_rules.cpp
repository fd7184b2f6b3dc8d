// What NCCL's documentation forbids or warns of, and its interaction with the driver: spinning collectives,
// connections, graphs.
#include <algorithm>

#include "simulated_cuda/driver_lock.h"
#include "simulated_cuda/nccl/nccl_state.h"
#include "simulated_cuda/runtime/devices.h"
#include "simulated_cuda/runtime/errors.h"
#include "simulated_cuda/runtime/quiet_lock.h"
#include "simulated_cuda/streams/graph_exec.h"

namespace dp::simt {
namespace {

using kernels::cuda::NcclRank;

std::string name_of(const NcclGroup& group) { return "communicator " + std::to_string(group.number); }
std::string device_of(const NcclGroup& group, int rank) {
  return device_name(group.ranks[static_cast<std::size_t>(rank)]->device);
}

// The ranks of the same process.
std::set<int> siblings(const NcclRank& rank) {
  std::set<int> all;
  for (const NcclRank* const other : rank.group->ranks)
    if (other != nullptr && other->process == rank.process) all.insert(other->rank);
  return all;
}

std::pair<int, int> channel_of(const NcclRank& rank, const NcclCall& call) {
  return call.kind == NcclKind::send ? std::pair(rank.rank, call.other) : std::pair(call.other, rank.rank);
}

// Assumption: NCCL connects for each algorithm, which it selects by kind and size. The real thresholds depend on the
// machine.
std::string connected_for(const NcclCall& call, int ranks) {
  const bool of_each = call.kind == NcclKind::all_gather || call.kind == NcclKind::reduce_scatter;
  const std::size_t kib =
      (call.count * bytes_of(call.type) * static_cast<std::size_t>(of_each ? ranks : 1) + 1023) / 1024;
  const char* const size = kib <= 64 ? "up to 64 KiB" : kib <= 4096 ? "up to 4 MiB" : "more than 4 MiB";
  return std::string(to_string(call.kind)) + " of " + size;
}

std::string missing_from(const NcclGroup& group, const std::set<int>& launched, const std::set<int>& all) {
  std::string text;
  for (const int rank : all)
    if (!launched.contains(rank)) text += (text.empty() ? "" : ", ") + device_of(group, rank);
  return text;
}

void tell_driver(const NcclGroup& group, const std::set<int>& process) {
  std::string what;
  if (!group.spinning.empty()) {
    const auto& [number, launched] = *group.spinning.begin();
    what = group.first.at(number).second + " (" + name_of(group) + ") on " + device_of(group, *launched.begin()) +
           ", which waits for " + missing_from(group, launched, process);
  } else if (!group.unpaired.empty()) {
    const auto& [channel, sends] = *group.unpaired.begin();
    const auto [from, to] = channel;
    what = std::string(sends > 0 ? "a send" : "a receive") + " (" + name_of(group) + ") on " +
           device_of(group, sends > 0 ? from : to) + ", which waits for " + device_of(group, sends > 0 ? to : from);
  }
  set_spinning(&group, what);
}

}  // namespace

void note_launch(const NcclLaunch& launch) {
  const NcclRank& rank = *launch.rank;
  NcclGroup& group = *rank.group;
  const std::set<int> process = siblings(rank);
  if (process.size() < 2 || rank.aborted || rank.destroyed) return;
  if (!is_between_two(launch.calls.front().kind)) {
    std::set<int>& launched = group.spinning[launch.number];
    launched.insert(rank.rank);
    if (launched.size() == process.size()) group.spinning.erase(launch.number);
  } else {
    for (const NcclCall& call : launch.calls) {
      if (!process.contains(call.other)) continue;
      const auto channel = channel_of(rank, call);
      group.unpaired[channel] += call.kind == NcclKind::send ? 1 : -1;
      if (group.unpaired[channel] == 0) group.unpaired.erase(channel);
    }
  }
  tell_driver(group, process);
}

void note_end(const NcclRank& rank) {
  NcclGroup& group = *rank.group;
  for (auto& [number, launched] : group.spinning) launched.erase(rank.rank);
  std::erase_if(group.spinning, [](const auto& launch) { return launch.second.empty(); });
  std::erase_if(group.unpaired, [&](const auto& half) {
    return (half.second > 0 ? half.first.first : half.first.second) == rank.rank;
  });
  tell_driver(group, siblings(rank));
}

void check_graph(const NcclLaunch& launch) {
  const NcclRank& rank = *launch.rank;
  const NcclGroup& group = *rank.group;
  const std::set<int> process = siblings(rank), &captured = group.captured.at(launch.capture);
  if (nccl_state().graphs_apart || std::includes(captured.begin(), captured.end(), process.begin(), process.end()))
    return;
  report("NCCL: a graph with the calls of " + device_name(rank.device) + ", but without those of " +
         missing_from(group, captured, process) + ", which " + name_of(group) +
         " serves in the same process: launching it may block, and so deadlock (NVIDIA, \"Using NCCL with CUDA "
         "Graphs\"); use one process for each GPU, or no graphs");
}

bool connect(NcclRank& rank, const std::vector<NcclCall>& calls, bool waits) {
  NcclState& state = nccl_state();
  NcclGroup& group = *rank.group;
  for (const NcclCall& call : calls) {
    const bool between_two = is_between_two(call.kind);
    if ((group.connected && !between_two) || group.size == 1) continue;
    const auto [from, to] = channel_of(rank, call);
    const std::string what = between_two ? "rank " + std::to_string(from) + " sending to rank " + std::to_string(to)
                                         : connected_for(call, group.size);
    if (!waits) {
      {
        const QuietLock lock(state.mutex);
        if (group.connecting[what].contains(rank.rank)) continue;
      }
      may_block("NCCL connecting " + name_of(group) + " for " + what);
      const QuietLock lock(state.mutex);
      group.connecting[what].insert(rank.rank);
      ++state.connections;
      state.changed.notify_all();
      continue;
    }
    const QuietLock lock(state.mutex);
    const std::set<int>& come = group.connecting[what];
    const std::size_t all = between_two ? 2 : static_cast<std::size_t>(group.size);
    const bool came = state.changed.wait_for(lock.get(), state.patience, [&] {
      return come.size() == all || rank.aborted || rank.given_up || rank.error != NcclResult::success;
    });
    if (rank.aborted || rank.given_up) return false;
    if (!came)
      report("NCCL: rank " + std::to_string(rank.rank) + " of " + name_of(group) + " waits for ever to connect for " +
             what);
  }
  return true;
}

// As NCCL 2.26 and later do.
void wait_for_graphs(NcclRank& rank, const char* call) {
  NcclState& state = nccl_state();
  const auto end = std::chrono::steady_clock::now() + state.patience;
  do {
    free_destroyed_graphs(false);
    const QuietLock lock(state.mutex);
    if (state.changed.wait_for(lock.get(), std::chrono::milliseconds(1), [&] { return rank.graphs == 0; })) return;
  } while (std::chrono::steady_clock::now() < end);
  report("NCCL: " + std::string(call) + " of rank " + std::to_string(rank.rank) + " of " + name_of(*rank.group) +
         " waits for ever for graphs that hold its calls: they must be destroyed first");
}

}  // namespace dp::simt
