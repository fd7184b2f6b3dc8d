// What the stand-in for NCCL remembers. One lock for all; the thread sanitizer does not see it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kernels/cuda/nccl_api.h"
#include "simt/foreign_work.h"
#include "simt/simulation.h"

namespace dp::simt {

using kernels::cuda::NcclResult;
using kernels::cuda::NcclType;

enum class NcclKind { broadcast, reduce, all_reduce, reduce_scatter, all_gather, send, receive };

struct NcclCall {
  NcclKind kind;
  const void* from;
  void* to;
  std::size_t count;
  NcclType type;
  int other;  // the root or the peer; -1: none
};
std::string to_string(const NcclCall& call);  // "reduce of 20 float32 to 0"
std::size_t bytes_of(NcclType type);
bool is_between_two(NcclKind kind);

struct NcclGroup;

// What one rank launches at once: a call, or those of a group.
struct NcclLaunch {
  kernels::cuda::NcclRank* rank;
  std::uint64_t number;  // among the rank's launches
  std::vector<NcclCall> calls;
};

// A communicator.
struct NcclGroup {
  int number, size;
  std::vector<kernels::cuda::NcclRank*> ranks;
  struct Meeting {
    std::vector<const NcclLaunch*> launches;  // by rank; null: not there yet
    int arrived = 0;
    bool done = false;
  };
  std::map<std::uint64_t, Meeting> meetings;                   // of launches that run
  std::map<std::uint64_t, std::pair<int, std::string>> first;  // of each launch, who made it first, and its text
};

struct NcclState {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::unique_ptr<NcclGroup>> groups;
  std::vector<std::unique_ptr<kernels::cuda::NcclRank>> ranks;
  std::vector<std::unique_ptr<NcclLaunch>> launches;
  std::vector<std::string> log[kMaxDevices];
  bool busy[kMaxDevices] = {};
  std::chrono::milliseconds patience{};
};
NcclState& nccl_state();

// On the stream's thread: meets the other ranks and moves the data.
void run_launch(const ForeignWork& work, int device, std::uint32_t operation);
// What a meeting of all ranks does to their memory. With the lock.
void move_data(const NcclGroup::Meeting& meeting);

}  // namespace dp::simt

// The opaque handle.
struct dp::kernels::cuda::NcclRank {
  dp::simt::NcclGroup* group;
  int rank, device;
  std::uint64_t launched = 0, finished = 0;
  bool aborted = false, destroyed = false;
  NcclResult error = NcclResult::success;
};
