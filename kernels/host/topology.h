// The usable cores by NUMA node and physical core, and which of them each replica gets.
#pragma once

#include <filesystem>
#include <vector>

namespace dp::kernels {

struct Topology {
  struct Core {
    int id = 0;
    int node = 0;
    int sibling = 0;  // 0: the first usable logical core of its physical core, 1: the second, ...
  };
  std::vector<Core> cores;

  int nodes() const;  // that have usable cores
};

// Reads `folder`, which is laid out as /sys/devices/system. A core that it does not describe is on node 0, and alone on
// its physical core.
Topology read_topology(const std::filesystem::path& folder, const std::vector<int>& cores);
const Topology& host_topology();  // of process_cores()

// All cores in the order for spreading work: the first logical core of every physical core, then the second ones, ...
std::vector<int> in_spreading_order(const Topology& topology);

// The cores of each replica, `threads` each. Second logical cores are used only if there are fewer physical cores than
// threads. A replica gets cores of one node if any node has enough left, and replicas are spread over the nodes: Linux
// stores a page on the node of the thread that first writes it, so a replica's memory is then on its own node. Replicas
// of one node are consecutive, because neighbouring stages of a pipeline exchange most. Empty if there are fewer cores
// than threads.
std::vector<std::vector<int>> cores_by_replica(const Topology& topology, int replicas, int threads);

}  // namespace dp::kernels
