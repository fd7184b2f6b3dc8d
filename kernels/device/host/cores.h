// Cores available to the process: their topology, their limits, and thread affinity.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dp/device.h"

namespace dp::kernels {

// Finds the NUMA node and the physical core of each usable core, and assigns cores to replicas.
struct Topology {
  struct Core {
    int id = 0;
    int node = 0;
    int sibling = 0;  // 0: the first usable logical core of its physical core, 1: the second, ...
  };
  std::vector<Core> cores;

  int nodes() const;  // that have usable cores
};

// Reads the topology from `folder`, which has the layout of /sys/devices/system. A core without a description counts as
// a physical core of its own on node 0.
Topology read_topology(const std::filesystem::path& folder, const std::vector<int>& cores);
const Topology& host_topology();  // of process_cores()

// All cores in the order for spreading work: the first logical core of every physical core, then the second ones, ...
std::vector<int> in_spreading_order(const Topology& topology);

// Returns `threads` cores for each replica; empty if there are too few cores. Uses second logical cores only if there
// are fewer physical cores than threads. Replicas are spread over the nodes. The cores of a replica are on one node if
// any node has enough unused cores. Its memory is then on that node too, because Linux stores a page on the node of the
// thread that first writes it. Replicas on one node have consecutive numbers, because neighbouring stages of a pipeline
// exchange the most data.
std::vector<std::vector<int>> cores_by_replica(const Topology& topology, int replicas, int threads);

// The cores of the process, and the affinity of threads.

// The cores of process_cores(), in the order of in_spreading_order().
const std::vector<int>& usable_cores();

// Starts the calling thread's OpenMP team, one call at a time in the process. OpenMP may bind its members
// (OMP_PROC_BIND); the calling thread keeps its affinity mask. Error(device) if OpenMP gives a smaller team.
void start_current_team(int members);
// Pins the calling thread to `core`, whatever its previous mask. Error(device) if the kernel refuses the core.
void pin_current_thread(int core);
// Pins the calling thread's OpenMP team of cores.size() threads: member i to cores[i]. Error(device).
void pin_current_team(std::span<const int> cores);
// Saves the calling thread's affinity mask and OpenMP settings. They are restored when the thread destroys its last
// keeper; the mask also for the members of its OpenMP team.
class ThreadKeeper {
 public:
  ThreadKeeper();

 private:
  struct Saved;
  std::shared_ptr<Saved> saved_;
};

// While it exists, the calling thread runs the ops that it makes without a team.
class WithoutTeam {
 public:
  WithoutTeam();
  ~WithoutTeam();
  WithoutTeam(const WithoutTeam&) = delete;
  WithoutTeam& operator=(const WithoutTeam&) = delete;

 private:
  const int threads_;
};

// Lets the calling thread run on all usable cores. Threads inherit the mask of their creator, hence loader and helper
// threads call this first.
void unpin_current_thread();

// Limits on the cores and threads of this process, beside its affinity mask (dp::available_cores() has the smallest).

// The smallest CPU quota of this process's control groups (v1, v2) and their parents, rounded up to whole cores. Empty
// without a quota.
std::optional<CoreLimit> cpu_quota();

// The largest team that OpenMP gives the calling thread: OMP_THREAD_LIMIT; 1 with OMP_MAX_ACTIVE_LEVELS=0 or inside a
// parallel region that may not be nested. Empty without a limit. oneDNN waits forever in a smaller team than planned.
std::optional<CoreLimit> largest_team();

// The control groups (cgroups, v1 and v2) of this process.

struct ControlGroup {
  std::string folder;  // "/sys/fs/cgroup/a/b", without a trailing slash
  int version = 2;
};

// The groups of this process that may limit `controller` ("memory", "cpu"): its own, all parents up to the mount point.
// In a container the path of the group may be the host's; the limits are then in the files at the mount point.
std::vector<ControlGroup> control_groups(std::string_view controller);

// Tests set this prefix for /proc and /sys. memory.h uses it too.
std::string& system_root();

}  // namespace dp::kernels
