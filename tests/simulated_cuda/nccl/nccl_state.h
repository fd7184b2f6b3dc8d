// What the stand-in for NCCL remembers. One lock for all; the thread sanitizer does not see it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "kernels/cuda/comm/nccl_api.h"
#include "simulated_cuda/foreign_work.h"
#include "simulated_cuda/simulation.h"

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
const char* to_string(NcclKind kind);
std::string to_string(const NcclCall& call);  // "reduce of 20 float32 to 0"
std::size_t bytes_of(NcclType type);
bool is_between_two(NcclKind kind);

struct NcclGroup;

// What one rank launches at once: a call, or those of a group; collectives, or sends and receives.
struct NcclLaunch {
  kernels::cuda::NcclRank* rank;
  std::uint64_t number;  // among the rank's collective launches
  std::vector<NcclCall> calls;
  std::uint64_t capture =
      0;  // the number of the capture that it is part of: it runs as often as that graph is launched; 0: none
  std::size_t met = 0;  // sends and receives that have found their other half
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

  // Of launches that not all ranks of a process have made, which so spin; of collectives, by the launch's number: the ranks that have.
  std::map<std::uint64_t, std::set<int>> spinning;
  std::map<std::pair<int, int>, int>
      unpaired;  // sends without receives, or the other way round if negative, by channel
  std::map<std::uint64_t, std::set<int>> captured;  // the ranks whose calls are in a capture
  bool connected = false;                           // for collectives: when it was made
  std::map<std::string, std::set<int>> connecting;  // the ranks that have come to connect for something
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
  std::optional<bool> connects_at_init;  // what NCCL_RUNTIME_CONNECT said before the first communicator
  bool graphs_apart = false;             // graphs of single replicas are allowed
  int connections = 0;                   // made at a first use
};
NcclState& nccl_state();

// On the stream's thread: meets the other ranks and moves the data; or does not, as its device has failed.
void run_launch(const ForeignWork& work, int device, std::uint32_t operation);
void drop_launch(const ForeignWork& work);

// What all of a process must have launched before any of it ends, for the reports of blocking calls. With the lock.
void note_launch(const NcclLaunch& launch);
void note_end(const kernels::cuda::NcclRank& rank);  // its kernels spin no more
// Reports a graph whose collectives are not those of all ranks of the process. With the lock.
void check_graph(const NcclLaunch& launch);
// As NCCL does at the first use of an algorithm or of a peer: takes memory, and then (`waits`) waits for the other ranks to do the same.
// False if the rank has been aborted.
bool connect(kernels::cuda::NcclRank& rank, const std::vector<NcclCall>& calls, bool waits);
// Until no graph holds the communicator.
void wait_for_graphs(kernels::cuda::NcclRank& rank, const char* call);

}  // namespace dp::simt

// The opaque handle.
struct dp::kernels::cuda::NcclRank {
  dp::simt::NcclGroup* group;
  int rank, device;
  std::uint64_t launched = 0, finished = 0, collectives = 0;
  bool aborted = false, destroyed = false;
  NcclResult error = NcclResult::success;
  std::thread::id process;  // ranks that one thread has made count as those of one process
  int graphs = 0;           // that hold calls of it
};
