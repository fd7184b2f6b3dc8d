// Tests the order of cores and their assignment to replicas. Files describe the machines, as in /sys/devices/system.
#include "kernels/device/host/cores.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "support/catch.h"
#include "support/temporary_folder.h"

using namespace dp;
using namespace dp::kernels;

namespace {

using Replicas = std::vector<std::vector<int>>;

std::vector<int> first_cores(int count) {
  std::vector<int> cores(static_cast<std::size_t>(count));
  std::iota(cores.begin(), cores.end(), 0);
  return cores;
}

void write(const std::filesystem::path& file, const std::string& text) {
  std::filesystem::create_directories(file.parent_path());
  std::ofstream(file) << text << '\n';
}

// A machine as Linux describes it: `nodes` nodes of `physical` cores with two logical cores each. The second logical
// cores have the upper half of the numbers.
class Machine {
 public:
  Machine(int nodes, int physical) : all_(nodes * physical) {
    for (int core = 0; core < 2 * all_; ++core)
      write(path() / "cpu" / ("cpu" + std::to_string(core)) / "topology/thread_siblings_list",
            std::to_string(core % all_) + "," + std::to_string(core % all_ + all_));
    for (int node = 0; node < nodes; ++node) {
      const int first = node * physical, last = first + physical - 1;
      const auto range = [&](int from) { return std::to_string(first + from) + "-" + std::to_string(last + from); };
      write(path() / "node" / ("node" + std::to_string(node)) / "cpulist", range(0) + "," + range(all_));
    }
    write(path() / "node/possible", "0-" + std::to_string(nodes - 1));
  }
  Topology topology() const { return read_topology(path(), first_cores(2 * all_)); }
  Topology topology(const std::vector<int>& cores) const { return read_topology(path(), cores); }

 private:
  std::filesystem::path path() const { return folder_.path(); }  // laid out as /sys/devices/system
  test::TemporaryFolder folder_;
  int all_;
};

std::set<int> nodes_of(const Topology& topology, const std::vector<int>& cores) {
  std::set<int> nodes;
  for (const int core : cores)
    for (const Topology::Core& one : topology.cores)
      if (one.id == core) nodes.insert(one.node);
  return nodes;
}

}  // namespace

TEST_CASE("cores: nodes and siblings are read as Linux describes them") {
  const Machine machine(2, 2);
  const Topology topology = machine.topology();
  REQUIRE(topology.cores.size() == 8);
  CHECK(topology.nodes() == 2);
  const std::vector<int> nodes{0, 0, 1, 1, 0, 0, 1, 1};
  for (std::size_t i = 0; i < 8; ++i) {
    CHECK(topology.cores[i].node == nodes[i]);
    CHECK(topology.cores[i].sibling == (i < 4 ? 0 : 1));
  }
  CHECK(in_spreading_order(topology) == first_cores(8));
  CHECK(machine.topology({5, 1, 4}).cores[1].sibling == 1);  // core 5, its sibling, comes first here
  CHECK(read_topology("/no/such/folder", {0, 1}).nodes() == 1);
  CHECK(in_spreading_order(machine.topology({0, 4, 1})) == std::vector<int>{0, 1, 4});
}

TEST_CASE("cores: each replica has the cores of one node, and replicas are spread over the nodes") {
  const Machine machine(2, 8);
  const Topology topology = machine.topology();
  CHECK(cores_by_replica(topology, 2, 8) == Replicas{first_cores(8), {8, 9, 10, 11, 12, 13, 14, 15}});
  CHECK(cores_by_replica(topology, 2, 3) == Replicas{{0, 1, 2}, {8, 9, 10}});
  CHECK(cores_by_replica(topology, 4, 2) == Replicas{{0, 1}, {2, 3}, {8, 9}, {10, 11}});
  for (const int replicas : {1, 2, 3, 4, 5, 8, 16})
    for (const int threads : {1, 2, 3, 4, 8, 16}) {
      const Replicas all = cores_by_replica(topology, replicas, threads);
      INFO(replicas << " replicas of " << threads << " threads");
      if (replicas * threads > 32) {
        CHECK(all.empty());
        continue;
      }
      std::set<int> used;
      for (const std::vector<int>& own : all) {
        CHECK(own.size() == static_cast<std::size_t>(threads));
        used.insert(own.begin(), own.end());
        for (const int core : own) CHECK((replicas * threads > 16 || core < 16));  // no second logical core
      }
      CHECK(used.size() == static_cast<std::size_t>(replicas * threads));
      // A node has 8 cores. If 8 is a multiple of `threads`, every replica fits on one node.
      if (8 % threads == 0 && replicas * threads <= 16)
        for (const std::vector<int>& own : all) CHECK(nodes_of(topology, own).size() == 1);
    }
}

TEST_CASE("cores: a replica for which no node has room takes cores of several") {
  const Machine machine(2, 4);
  const Topology topology = machine.topology();
  CHECK(cores_by_replica(topology, 1, 8) == Replicas{first_cores(8)});  // physical cores before a single node
  const Replicas three = cores_by_replica(topology, 2, 3);
  CHECK(nodes_of(topology, three[0]) == std::set<int>{0});
  CHECK(nodes_of(topology, three[1]) == std::set<int>{1});
  const Replicas rest = cores_by_replica(machine.topology({0, 1, 2, 3, 4, 5}), 2, 3);
  CHECK(rest == Replicas{{0, 1, 2}, {3, 4, 5}});
}

TEST_CASE("cores: on one node replicas get consecutive cores in spreading order") {
  const Machine machine(1, 4);
  CHECK(cores_by_replica(machine.topology(), 2, 2) == Replicas{{0, 1}, {2, 3}});
  CHECK(cores_by_replica(machine.topology(), 2, 4) == Replicas{{0, 1, 2, 3}, {4, 5, 6, 7}});
}

TEST_CASE("cores: lists of cores and ranges are parsed, and other folders than nodes are ignored") {
  const test::TemporaryFolder folder;
  const std::filesystem::path path = folder.path();
  write(path / "node/node0/cpulist", "0-1,4,6-7");
  write(path / "node/node3/cpulist", "");  // memory without cores
  write(path / "node/node12/cpulist", "2,5");
  write(path / "node/node/cpulist", "0-9");
  write(path / "node/node1x/cpulist", "0-9");
  write(path / "node/memory1/cpulist", "0-9");
  write(path / "cpu/cpu4/topology/thread_siblings_list", "0,4");
  write(path / "cpu/cpu0/topology/thread_siblings_list", "0,4");
  const Topology topology = read_topology(path, {0, 1, 2, 3, 4, 5, 6, 7});
  const std::vector<int> nodes{0, 0, 12, 0, 0, 12, 0, 0}, siblings{0, 0, 0, 0, 1, 0, 0, 0};
  REQUIRE(topology.cores.size() == 8);
  for (std::size_t i = 0; i < 8; ++i) {
    INFO("core " << i);
    CHECK(topology.cores[i].id == static_cast<int>(i));
    CHECK(topology.cores[i].node == nodes[i]);
    CHECK(topology.cores[i].sibling == siblings[i]);
  }
  CHECK(topology.nodes() == 2);
  CHECK(Topology{}.nodes() == 0);
  CHECK(in_spreading_order(topology) == std::vector<int>{0, 1, 2, 3, 5, 6, 7, 4});
  CHECK(cores_by_replica(topology, 1, 8) == Replicas{{0, 1, 3, 6, 7, 4, 2, 5}});
  CHECK(cores_by_replica(topology, 3, 2) == Replicas{{0, 1}, {3, 6}, {2, 5}});
  CHECK(cores_by_replica(topology, 2, 0) == Replicas{{}, {}});
  CHECK(cores_by_replica(topology, 0, 1).empty());
  CHECK(cores_by_replica(topology, 3, 3).empty());
}
