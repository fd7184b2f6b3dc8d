// The NCCL functions that the backend calls.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>

#include "kernels/comm/nccl/nccl_communicator.h"
#include "simulated_cuda/driver_lock.h"
#include "simulated_cuda/nccl/nccl_recorder.h"
#include "simulated_cuda/nccl/nccl_state.h"
#include "simulated_cuda/runtime/devices.h"
#include "simulated_cuda/runtime/errors.h"
#include "simulated_cuda/runtime/quiet_lock.h"
#include "simulated_cuda/streams/graph_exec.h"

namespace dp::simt {
namespace {

using namespace kernels::cuda;
using Comm = NcclComm;

struct Pending {
  Comm comm;
  cudaStream_t stream;
  NcclCall call;
};
thread_local int depth = 0;                 // nesting depth of groups
thread_local bool call_has_failed = false;  // in this group, which then launches nothing
thread_local std::vector<Pending> pending;

// Whether fault injection makes this call fail.
bool is_to_fail(const char* function = __builtin_FUNCTION()) {
  if (!failing_nccl_call.now()) return false;
  failed_call = function;
  return call_has_failed = true;
}

std::string text_of(const std::vector<NcclCall>& calls) {
  std::string text;
  for (const NcclCall& call : calls) text += (text.empty() ? "" : " + ") + to_string(call);
  return text;
}

// Called once per execution: assigns the launch its number.
void* begin_launch(void* data) {
  const NcclLaunch& asked = *static_cast<const NcclLaunch*>(data);
  NcclState& state = nccl_state();
  const QuietLock lock(state.mutex);
  const Comm comm = asked.rank;
  state.launches.push_back(std::make_unique<NcclLaunch>(asked));
  NcclLaunch* const made = state.launches.back().get();
  const std::string text = text_of(made->calls) + (made->capture != 0 ? " in a graph" : "");
  if (comm->aborted || comm->destroyed) report("NCCL: a call with a communicator that is gone: " + text);
  ++comm->launched;
  if (made->capture != 0) check_graph(*made);
  if (is_between_two(made->calls.front().kind)) {
    note_launch(*made);
    return made;
  }
  NcclGroup& group = *comm->group;
  const std::string name = "communicator " + std::to_string(group.number);
  made->number = comm->collectives++;
  state.log[comm->device].push_back(name + ": " + text);
  const auto [first, is_first] = group.first.try_emplace(made->number, comm->rank, text);
  note_launch(*made);
  if (first->second.second != text)
    report("NCCL: call " + std::to_string(made->number) + " of " + name + ": rank " +
           std::to_string(first->second.first) + " makes " + first->second.second + ", rank " +
           std::to_string(comm->rank) + " makes " + text);
  return made;
}

// Counts graphs that contain the launch.
void held(void* data, int by) {
  NcclState& state = nccl_state();
  const QuietLock lock(state.mutex);
  static_cast<NcclLaunch*>(data)->rank->graphs += by;
  state.changed.notify_all();
}

NcclResult launch(Comm comm, cudaStream_t stream, std::vector<NcclCall> calls) {
  NcclState& state = nccl_state();
  NcclLaunch* made = nullptr;
  {
    const QuietLock lock(state.mutex);
    if (comm->aborted || comm->destroyed) {
      report("NCCL: a call with a communicator that is gone: " + text_of(calls));
      return NcclResult::invalid_argument;
    }
    NcclGroup& group = *comm->group;
    const std::string name = "communicator " + std::to_string(group.number);
    if (device_of(stream) != comm->device)
      report("NCCL: rank " + std::to_string(comm->rank) + " of " + name + " lives on " + device_name(comm->device) +
             ", its call is on a stream of " + device_name(device_of(stream)));
    const bool between_two = is_between_two(calls.front().kind);
    for (const NcclCall& one : calls)
      if (is_between_two(one.kind) != between_two) report("NCCL: a group of collectives and sends: " + text_of(calls));
    state.launches.push_back(std::make_unique<NcclLaunch>(NcclLaunch{comm, 0, std::move(calls), capture_of(stream)}));
    made = state.launches.back().get();
    if (made->capture != 0) group.captured[made->capture].insert(comm->rank);
  }
  if (sticky_error(comm->device) != cudaSuccess) return NcclResult::unhandled_cuda_error;  // nothing is launched
  return enqueue(stream, ForeignWork{"NCCL", run_launch, made, begin_launch, drop_launch, held}) == cudaSuccess
             ? NcclResult::success
             : NcclResult::unhandled_cuda_error;
}

using CallsOfRanks = std::map<Comm, std::vector<NcclCall>>;  // of one thread

// Returns false if one of the ranks has been aborted, or will be.
bool connect_all(const CallsOfRanks& calls) {
  const auto all = [&](bool waits) {
    return std::all_of(calls.begin(), calls.end(),
                       [&](const auto& own) { return connect(*own.first, own.second, waits); });
  };
  const auto set_waits = [&](bool waits) {
    const QuietLock lock(nccl_state().mutex);
    for (const auto& [comm, of_comm] : calls) comm->waits = waits;
    return std::none_of(calls.begin(), calls.end(), [](const auto& own) { return own.first->given_up; });
  };
  if (!all(false)) return false;
  set_waits(true);
  const bool connected = all(true);
  return set_waits(false) && connected;
}

NcclResult call(Comm comm, cudaStream_t stream, const NcclCall& one) {
  if (is_to_fail(to_string(one.kind))) return NcclResult::internal_error;
  if (depth == 0) return connect_all({{comm, {one}}}) ? launch(comm, stream, {one}) : NcclResult::remote_error;
  pending.push_back({comm, stream, one});
  return NcclResult::success;
}

NcclResult get_version(int* version) {
  *version = 22809;
  return NcclResult::success;
}

NcclResult get_unique_id(NcclId* id) {
  if (is_to_fail()) return NcclResult::internal_error;
  NcclState& state = nccl_state();
  const QuietLock lock(state.mutex);
  state.groups.push_back(std::make_unique<NcclGroup>());
  state.groups.back()->number = static_cast<int>(state.groups.size());
  *id = {};
  id->bytes[0] = static_cast<char>(state.groups.size());
  return NcclResult::success;
}

NcclResult comm_init_rank(Comm* comm, int ranks, NcclId id, int rank) {
  may_block("ncclCommInitRank");
  if (is_to_fail()) return NcclResult::internal_error;
  if (rank < 0 || rank >= ranks) {
    call_has_failed = true;
    return NcclResult::invalid_argument;
  }
  NcclState& state = nccl_state();
  const QuietLock lock(state.mutex);
  NcclGroup& group = *state.groups.at(static_cast<unsigned char>(id.bytes[0]) - 1u);
  group.size = ranks;
  group.ranks.resize(static_cast<std::size_t>(ranks));
  for (const NcclRank* const other : group.ranks)
    if (other != nullptr && other->device == current_device()) return NcclResult::invalid_usage;  // as NCCL does
  auto& place = group.ranks.at(static_cast<std::size_t>(rank));
  if (place != nullptr) return NcclResult::invalid_argument;
  if (!state.connects_at_init) {
    const char* const at_use = std::getenv("NCCL_RUNTIME_CONNECT");
    state.connects_at_init = at_use != nullptr && std::string(at_use) == "0";
  }
  group.connected = *state.connects_at_init || ranks == 1;
  state.ranks.push_back(std::make_unique<NcclRank>(
      NcclRank{.group = &group, .rank = rank, .device = current_device(), .process = std::this_thread::get_id()}));
  spinners_changed(1);
  place = *comm = state.ranks.back().get();
  state.changed.notify_all();
  if (depth > 0) return NcclResult::success;
  const auto complete = [&] { return std::count(group.ranks.begin(), group.ranks.end(), nullptr) == 0; };
  return state.changed.wait_for(lock.get(), state.patience, complete) ? NcclResult::success : NcclResult::system_error;
}

NcclResult comm_destroy(Comm comm) {
  NcclState& state = nccl_state();
  const QuietLock lock(state.mutex);
  if (comm->aborted || comm->destroyed) report("NCCL: a communicator is destroyed twice");
  if (comm->finished != comm->launched) report("NCCL: a communicator is destroyed while its calls run");
  comm->destroyed = true;
  note_end(*comm);
  spinners_changed(-1);
  lock.get().unlock();
  may_block("ncclCommDestroy");
  wait_for_graphs(*comm, "ncclCommDestroy");
  lock.get().lock();
  return NcclResult::success;
}

// Not reported as a blocking call: it ends the communicator's kernels before it frees anything. If it waits for kernels
// of another communicator, that communicator's abort ends them without a launch.
NcclResult comm_abort(Comm comm) {
  NcclState& state = nccl_state();
  const QuietLock lock(state.mutex);
  if (comm->aborted || comm->destroyed) report("NCCL: a communicator is aborted that is gone");
  comm->aborted = true;
  note_end(*comm);
  spinners_changed(-1);
  state.changed.notify_all();
  lock.get().unlock();
  wait_for_graphs(*comm, "ncclCommAbort");
  lock.get().lock();
  return NcclResult::success;
}

NcclResult comm_get_async_error(Comm comm, NcclResult* error) {
  if (is_to_fail()) return NcclResult::internal_error;
  const QuietLock lock(nccl_state().mutex);
  *error = comm->error;
  return NcclResult::success;
}

const char* get_error_string(NcclResult result) {
  return result == NcclResult::remote_error ? "remote process exited or there was a network error"
                                            : "a simulated error";
}
const char* get_last_error(Comm) { return "planted"; }

NcclResult broadcast(const void* from, void* to, std::size_t count, NcclType type, int root, Comm comm,
                     cudaStream_t stream) {
  return call(comm, stream, {NcclKind::broadcast, from, to, count, type, root});
}
NcclResult reduce(const void* from, void* to, std::size_t count, NcclType type, NcclOp, int root, Comm comm,
                  cudaStream_t stream) {
  return call(comm, stream, {NcclKind::reduce, from, to, count, type, root});
}
NcclResult all_reduce(const void* from, void* to, std::size_t count, NcclType type, NcclOp, Comm comm,
                      cudaStream_t stream) {
  return call(comm, stream, {NcclKind::all_reduce, from, to, count, type, -1});
}
NcclResult reduce_scatter(const void* from, void* to, std::size_t count, NcclType type, NcclOp, Comm comm,
                          cudaStream_t stream) {
  return call(comm, stream, {NcclKind::reduce_scatter, from, to, count, type, -1});
}
NcclResult all_gather(const void* from, void* to, std::size_t count, NcclType type, Comm comm, cudaStream_t stream) {
  return call(comm, stream, {NcclKind::all_gather, from, to, count, type, -1});
}
NcclResult send(const void* from, std::size_t count, NcclType type, int peer, Comm comm, cudaStream_t stream) {
  return call(comm, stream, {NcclKind::send, from, nullptr, count, type, peer});
}
NcclResult receive(void* to, std::size_t count, NcclType type, int peer, Comm comm, cudaStream_t stream) {
  return call(comm, stream, {NcclKind::receive, nullptr, to, count, type, peer});
}

// Connects all communicators of the group at once.
bool connect_pending() {
  CallsOfRanks calls;
  for (const Pending& one : pending) calls[one.comm].push_back(one.call);
  return connect_all(calls);
}

NcclResult group_start() {
  if (is_to_fail()) return NcclResult::internal_error;
  if (depth++ == 0) call_has_failed = false;
  return NcclResult::success;
}
NcclResult group_end() {
  if (--depth > 0) return NcclResult::success;
  if (is_to_fail() || call_has_failed) {
    pending.clear();
    return NcclResult::internal_error;
  }
  if (!connect_pending()) {
    pending.clear();
    return NcclResult::remote_error;
  }
  while (!pending.empty()) {
    const Comm comm = pending.front().comm;
    const cudaStream_t stream = pending.front().stream;
    std::vector<NcclCall> calls;
    std::erase_if(pending, [&](const Pending& one) {
      if (one.comm == comm) calls.push_back(one.call);
      return one.comm == comm;
    });
    if (const NcclResult result = launch(comm, stream, std::move(calls)); result != NcclResult::success) {
      pending.clear();
      return result;
    }
  }
  return NcclResult::success;
}

const NcclApi& api() {
  static const NcclApi functions{get_version,          get_unique_id,    comm_init_rank, comm_destroy, comm_abort,
                                 comm_get_async_error, get_error_string, get_last_error, broadcast,    reduce,
                                 all_reduce,           reduce_scatter,   all_gather,     send,         receive,
                                 group_start,          group_end};
  return functions;
}

}  // namespace

namespace {

// If a thread is in a call that waits for another rank, ends the wait: the call fails, even if the rank comes now.
// Returns whether one was. The communicator will then be aborted.
bool give_up_waiting(Comm comm, std::chrono::steady_clock::time_point) {
  const QuietLock lock(nccl_state().mutex);
  if (!comm->waits) return false;
  comm->given_up = true;
  nccl_state().changed.notify_all();
  return true;
}

}  // namespace

SimulatedNccl::SimulatedNccl(std::chrono::milliseconds patience) {
  waits_for_peer = &give_up_waiting;
  nccl_state().patience = patience;
  nccl_state().graphs_apart = false;
  provide_nccl({&api(), "simulated", {}});
}

SimulatedNccl::~SimulatedNccl() {
  free_destroyed_graphs(/*wait=*/true);  // they refer to launches of this object
  provide_nccl({nullptr, {}, "it is not simulated here"});
  NcclState& state = nccl_state();
  const QuietLock lock(state.mutex);
  for (auto& log : state.log) log.clear();
  state.launches.clear();
  for (const auto& rank : state.ranks) spinners_changed(rank->aborted || rank->destroyed ? 0 : -1);
  for (const auto& group : state.groups) set_spinning(group.get(), {});
  state.ranks.clear();
  state.groups.clear();
  state.connects_at_init.reset();
  state.graphs_apart = false;
  state.connections = 0;
}

void SimulatedNccl::allow_a_graph_for_each_replica() {
  const QuietLock lock(nccl_state().mutex);
  nccl_state().graphs_apart = true;
}

void SimulatedNccl::lose_patience() {
  const QuietLock lock(nccl_state().mutex);
  nccl_state().patience = {};
}

int SimulatedNccl::late_connections() const {
  const QuietLock lock(nccl_state().mutex);
  return nccl_state().connections;
}

std::vector<std::string> SimulatedNccl::launches(int device) const {
  const QuietLock lock(nccl_state().mutex);
  return nccl_state().log[device];
}

void SimulatedNccl::break_rank(int device, NcclResult error) {
  const QuietLock lock(nccl_state().mutex);
  for (const auto& rank : nccl_state().ranks)
    if (rank->device == device) rank->error = error;
}

int SimulatedNccl::waiting() const {
  const QuietLock lock(nccl_state().mutex);
  return static_cast<int>(std::ranges::count_if(nccl_state().ranks, [](const auto& rank) { return rank->waits; }));
}

int SimulatedNccl::communicators() const {
  const QuietLock lock(nccl_state().mutex);
  return static_cast<int>(nccl_state().groups.size());
}

int SimulatedNccl::handles() const {
  const QuietLock lock(nccl_state().mutex);
  int count = 0;
  for (const auto& rank : nccl_state().ranks) count += !rank->aborted && !rank->destroyed;
  return count;
}

}  // namespace dp::simt
