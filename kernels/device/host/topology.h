// Finds the NUMA node and the physical core of each usable core, and assigns cores to replicas.
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

}  // namespace dp::kernels
