// Executes the collectives of the simulated NCCL.
#include <algorithm>
#include <cstring>

#include "kernels/low_float.h"
#include "simulated_cuda/nccl/nccl_state.h"
#include "simulated_cuda/runtime/devices.h"
#include "simulated_cuda/runtime/errors.h"
#include "simulated_cuda/runtime/quiet_lock.h"

namespace dp::simt {
namespace {

struct Write {
  void* to;
  std::vector<char> bytes;
};

std::vector<char> copy_of(const void* from, std::size_t bytes) {
  const char* const begin = static_cast<const char*>(from);
  return {begin, begin + bytes};
}

template <typename T>
std::vector<char> sum_as(const std::vector<const char*>& summands, std::size_t count) {
  std::vector<T> sum(count);
  for (const char* const summand : summands)  // the last rank first: not the order of p2p
    for (std::size_t i = 0; i < count; ++i) sum[i] += reinterpret_cast<const T*>(summand)[i];
  return copy_of(sum.data(), count * sizeof(T));
}

template <>  // rounds after each addition
std::vector<char> sum_as<kernels::BFloat16>(const std::vector<const char*>& summands, std::size_t count) {
  std::vector<kernels::BFloat16> sum(count);
  for (const char* const summand : summands)
    for (std::size_t i = 0; i < count; ++i)
      sum[i] = kernels::from_float<kernels::BFloat16>(
          kernels::to_float(sum[i]) + kernels::to_float(reinterpret_cast<const kernels::BFloat16*>(summand)[i]));
  return copy_of(sum.data(), count * sizeof(kernels::BFloat16));
}

// Reduces call `i` of every rank, starting at element `offset` of its input.
std::vector<char> sum_of(const NcclGroup::RunningLaunch& collective, std::size_t i, std::size_t offset) {
  const NcclCall& call = collective.launches.front()->calls[i];
  std::vector<const char*> summands;
  for (const NcclLaunch* const launch : collective.launches)
    summands.insert(summands.begin(), static_cast<const char*>(launch->calls[i].from) + offset * bytes_of(call.type));
  switch (call.type) {
    case NcclType::f64: return sum_as<double>(summands, call.count);
    case NcclType::bf16: return sum_as<kernels::BFloat16>(summands, call.count);
    default: return sum_as<float>(summands, call.count);
  }
}

void collect(const NcclGroup::RunningLaunch& collective, std::size_t i, std::vector<Write>& writes) {
  const NcclCall& call = collective.launches.front()->calls[i];
  const std::size_t bytes = call.count * bytes_of(call.type);
  const auto of = [&](std::size_t rank) -> const NcclCall& { return collective.launches[rank]->calls[i]; };
  const auto root = static_cast<std::size_t>(std::max(call.other, 0));
  if (call.kind == NcclKind::reduce) writes.push_back({of(root).to, sum_of(collective, i, 0)});
  for (std::size_t rank = 0; rank < collective.launches.size(); ++rank) {
    if (call.kind == NcclKind::broadcast) writes.push_back({of(rank).to, copy_of(of(root).from, bytes)});
    if (call.kind == NcclKind::all_reduce) writes.push_back({of(rank).to, sum_of(collective, i, 0)});
    if (call.kind == NcclKind::reduce_scatter)
      writes.push_back({of(rank).to, sum_of(collective, i, rank * call.count)});
    if (call.kind == NcclKind::all_gather)
      for (std::size_t other = 0; other < collective.launches.size(); ++other)
        writes.push_back({static_cast<char*>(of(rank).to) + other * bytes, copy_of(of(other).from, bytes)});
  }
}

// Moves the data once all ranks have arrived. The caller holds the lock.
void move_data(const NcclGroup::RunningLaunch& collective) {
  unsigned devices = 0;
  for (const NcclLaunch* const launch : collective.launches) {
    const auto& theirs = launch->calls;
    const auto& ours = collective.launches.front()->calls;
    const auto same = [](const NcclCall& a, const NcclCall& b) { return to_string(a) == to_string(b); };
    if (!std::equal(theirs.begin(), theirs.end(), ours.begin(), ours.end(), same)) return;  // has been reported
    devices |= 1u << launch->rank->device;
  }
  const QuietAccesses quiet;
  const OpenMemory open(devices);
  std::vector<Write> writes;  // all reads precede all writes
  for (std::size_t i = 0; i < collective.launches.front()->calls.size(); ++i) collect(collective, i, writes);
  for (const Write& write : writes) std::memcpy(write.to, write.bytes.data(), write.bytes.size());
}

// Matches the n-th send from one rank to another with the n-th receive. The caller holds the lock.
void pair_up(NcclGroup& group, NcclLaunch& launch) {
  const int rank = launch.rank->rank;
  for (const NcclCall& call : launch.calls) {
    const bool sends = call.kind == NcclKind::send;
    NcclGroup::Channel& channel = group.channels[sends ? std::pair(rank, call.other) : std::pair(call.other, rank)];
    (sends ? channel.sends : channel.receives).push_back({&launch, &call});
    if (channel.sends.empty() || channel.receives.empty()) continue;
    const NcclGroup::Half from = channel.sends.front(), to = channel.receives.front();
    channel.sends.pop_front(), channel.receives.pop_front();
    ++from.launch->met, ++to.launch->met;
    if (from.call->count != to.call->count || from.call->type != to.call->type) {
      report("NCCL: rank " + std::to_string(from.launch->rank->rank) + " makes a " + to_string(*from.call) +
             ", but rank " + std::to_string(to.launch->rank->rank) + " a " + to_string(*to.call));
      continue;
    }
    const QuietAccesses quiet;
    const OpenMemory open(1u << from.launch->rank->device | 1u << to.launch->rank->device);
    std::memcpy(to.call->to, from.call->from, from.call->count * bytes_of(from.call->type));
  }
}

std::vector<TouchedMemory> touched_by(const NcclLaunch& launch) {
  std::vector<TouchedMemory> touched;
  for (const NcclCall& call : launch.calls) {
    const std::size_t bytes = call.count * bytes_of(call.type),
                      ranks = static_cast<std::size_t>(launch.rank->group->size);
    const bool rooted = call.kind == NcclKind::reduce || call.kind == NcclKind::broadcast;
    const bool gives = call.kind != NcclKind::broadcast || call.other == launch.rank->rank;
    const bool gets = !rooted || call.kind == NcclKind::broadcast || call.other == launch.rank->rank;
    if (call.from != nullptr && gives)
      touched.push_back({call.from, call.kind == NcclKind::reduce_scatter ? bytes * ranks : bytes, false});
    if (call.to != nullptr && gets)
      touched.push_back({call.to, call.kind == NcclKind::all_gather ? bytes * ranks : bytes, true});
  }
  return touched;
}

// Removes a launch that has given up, so that it is not matched later.
void forget(NcclGroup& group, const NcclLaunch& launch) {
  for (auto& [ranks, channel] : group.channels)
    for (auto* const halves : {&channel.sends, &channel.receives})
      std::erase_if(*halves, [&](const NcclGroup::Half& half) { return half.launch == &launch; });
}

}  // namespace

NcclState& nccl_state() {
  static auto& state = *new NcclState;
  return state;
}

std::size_t bytes_of(NcclType type) {
  switch (type) {
    case NcclType::u8: return 1;
    case NcclType::bf16: return 2;
    case NcclType::f32: return 4;
    case NcclType::f64: break;
  }
  return 8;
}
bool is_between_two(NcclKind kind) { return kind == NcclKind::send || kind == NcclKind::receive; }

const char* to_string(NcclKind kind) {
  static constexpr const char* kKinds[] = {"broadcast",  "reduce", "all_reduce", "reduce_scatter",
                                           "all_gather", "send",   "receive"};
  return kKinds[static_cast<int>(kind)];
}

std::string to_string(const NcclCall& call) {
  std::string text = to_string(call.kind);
  text += " of " + std::to_string(call.count);
  switch (call.type) {
    case NcclType::u8: text += " bytes"; break;
    case NcclType::bf16: text += " bfloat16"; break;
    case NcclType::f32: text += " float32"; break;
    case NcclType::f64: text += " float64";
  }
  if (call.other >= 0) text += (is_between_two(call.kind) ? " with " : ", root ") + std::to_string(call.other);
  return text;
}

void drop_launch(const ForeignWork& work) {
  NcclState& state = nccl_state();
  const QuietLock lock(state.mutex);
  ++static_cast<NcclLaunch*>(work.data)->rank->finished;
}

void run_launch(const ForeignWork& work, int device, std::uint32_t operation) {
  NcclLaunch& launch = *static_cast<NcclLaunch*>(work.data);
  NcclState& state = nccl_state();
  auto& rank = *launch.rank;
  {
    const QuietLock lock(state.mutex);
    NcclGroup& group = *rank.group;
    const auto stuck = [&](const char* where) {
      report("NCCL: rank " + std::to_string(rank.rank) + " of communicator " + std::to_string(group.number) +
             " waits for ever " + where + " in its call " + std::to_string(launch.number));
    };
    const auto ended = [&] { return rank.aborted || dp::simt::device(device).sticky != cudaSuccess; };
    // Returns false on timeout.
    const auto wait = [&](const auto& ready, const char* where) {
      constexpr std::chrono::milliseconds kLook{5};  // poll interval of the device's state
      const auto end = std::chrono::steady_clock::now() + state.patience;
      while (std::chrono::steady_clock::now() < end)
        if (state.changed.wait_for(lock.get(), kLook, [&] { return ended() || ready(); })) return true;
      stuck(where);
      return false;
    };
    wait([&] { return !state.busy[device]; }, "for its device");
    state.busy[device] = true;
    if (rank.aborted || rank.error != NcclResult::success) {
      wait([] { return false; }, "for an abort");
    } else if (is_between_two(launch.calls.front().kind)) {
      pair_up(group, launch);
      state.changed.notify_all();
      const bool came = wait([&] { return launch.met == launch.calls.size(); }, "for the other ranks");
      if (!came || ended()) forget(group, launch);
    } else {
      NcclGroup::RunningLaunch& collective = group.running_launches[launch.number];
      collective.launches.resize(static_cast<std::size_t>(group.size));
      collective.launches[static_cast<std::size_t>(rank.rank)] = &launch;
      if (++collective.arrived == group.size && !collective.given_up) {
        move_data(collective);
        collective.done = true;
        state.changed.notify_all();
      }
      const bool came = wait([&] { return collective.done; }, "for the other ranks");
      if (!came || ended()) collective.given_up = true;
    }
    ++rank.finished;
    state.busy[device] = false;
    state.changed.notify_all();
  }
  announce(work, device, operation, touched_by(launch));
}

}  // namespace dp::simt
