// What the stand-in for NCCL remembers. One lock for all; the thread sanitizer does not see it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
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

// What one rank launches at once: a call, or those of a group; collectives, or sends and receives.
struct NcclLaunch {
  kernels::cuda::NcclRank* rank;
  std::uint64_t number;  // among the rank's collective launches
  std::vector<NcclCall> calls;
  bool captured = false;  // it is part of a graph, and runs as often as that is launched
  std::size_t met = 0;    // sends and receives that have found their other half
};

// A communicator.
struct NcclGroup {
  int number, size;
  std::vector<kernels::cuda::NcclRank*> ranks;
  struct Meeting {
    std::vector<const NcclLaunch*> launches;  // by rank; null: not there yet
    int arrived = 0;
    bool done = false, given_up = false;  // given_up: by a rank, whose memory may be gone
  };
  struct Half {
    NcclLaunch* launch;
    const NcclCall* call;
  };
  struct Channel {  // from one rank to another
    std::deque<Half> sends, receives;
  };
  std::map<std::pair<int, int>, Channel> channels;
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

}  // namespace dp::simt

// The opaque handle.
struct dp::kernels::cuda::NcclRank {
  dp::simt::NcclGroup* group;
  int rank, device;
  std::uint64_t launched = 0, finished = 0, collectives = 0;
  bool aborted = false, destroyed = false;
  NcclResult error = NcclResult::success;
};
