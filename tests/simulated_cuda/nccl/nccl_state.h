// State of the simulated NCCL. One lock protects it; the thread sanitizer does not see this lock.
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

#include "kernels/comm/nccl/nccl_api.h"
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
std::string to_string(const NcclCall& call);  // "reduce of 20 float32, root 0"
std::size_t bytes_of(NcclType type);
bool is_between_two(NcclKind kind);

struct NcclGroup;

// What one rank launches at once: a single call or the calls of a group. Either collectives, or sends and receives.
struct NcclLaunch {
  kernels::cuda::NcclRank* rank;
  std::uint64_t number;  // among the rank's collective launches
  std::vector<NcclCall> calls;
  std::uint64_t capture =
      0;                // number of the capture that recorded it, and whose graph repeats it at each launch; 0: none
  std::size_t met = 0;  // number of matched sends and receives
};

// A communicator.
struct NcclGroup {
  int number, size;
  std::vector<kernels::cuda::NcclRank*> ranks;
  struct RunningLaunch {
    std::vector<const NcclLaunch*> launches;  // by rank; null: not arrived
    int arrived = 0;
    bool done = false, given_up = false;  // given_up: by a rank, whose memory may be freed
  };
  struct Half {
    NcclLaunch* launch;
    const NcclCall* call;
  };
  struct Channel {  // from one rank to another
    std::deque<Half> sends, receives;
  };
  std::map<std::pair<int, int>, Channel> channels;
  std::map<std::uint64_t, RunningLaunch> running_launches;     // by launch number
  std::map<std::uint64_t, std::pair<int, std::string>> first;  // by launch: its first rank, and its text

  // By number, the collective launches that not all ranks of the process have made, and the ranks that have. Their
  // kernels spin.
  std::map<std::uint64_t, std::set<int>> spinning;
  std::map<std::pair<int, int>, int>
      unpaired;  // by channel: sends without receives, or if negative receives without sends
  std::map<std::uint64_t, std::set<int>> captured;  // by capture: the ranks with captured calls
  bool connected = false;                           // for collectives, at initialisation
  std::map<std::string, std::set<int>> connecting;  // by algorithm or channel: the ranks that have arrived to connect
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
  std::optional<bool> connects_at_init;  // from NCCL_RUNTIME_CONNECT before the first communicator
  bool graphs_apart = false;             // graphs of single replicas are allowed
  int connections = 0;                   // made at a first use
};
NcclState& nccl_state();

// On the stream's thread. run_launch() waits for the other ranks and moves the data. drop_launch() is called in its
// place if the device has failed.
void run_launch(const ForeignWork& work, int device, std::uint32_t operation);
void drop_launch(const ForeignWork& work);

// Tracks, for the reports of blocking calls, which ranks of a process have made each launch. The caller holds the lock.
void note_launch(const NcclLaunch& launch);
void note_end(const kernels::cuda::NcclRank& rank);  // the rank's kernels no longer spin
// Reports a graph without the collectives of all ranks of the process. The caller holds the lock.
void check_graph(const NcclLaunch& launch);
// Simulates the connection that NCCL makes at the first use of an algorithm or a peer: allocates memory (without
// `waits`), then waits for the other ranks to do the same (with `waits`). Returns false if the rank has been aborted or
// will be.
bool connect(kernels::cuda::NcclRank& rank, const std::vector<NcclCall>& calls, bool waits);
// Waits until no graph contains calls of the communicator.
void wait_for_graphs(kernels::cuda::NcclRank& rank, const char* call);

}  // namespace dp::simt

// The opaque handle.
struct dp::kernels::cuda::NcclRank {
  dp::simt::NcclGroup* group;
  int rank, device;
  std::uint64_t launched = 0, finished = 0, collectives = 0;
  bool aborted = false, destroyed = false;
  bool waits = false, given_up = false;  // in a call, for another rank to connect; will be aborted without it
  NcclResult error = NcclResult::success;
  std::thread::id process;  // ranks made by one thread count as one process
  int graphs = 0;           // number of graphs that contain its calls
};
