#include "kernels/device/host/topology.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>

#include "dp/device.h"

namespace dp::kernels {
namespace {

std::string first_line(const std::filesystem::path& file) {
  std::ifstream stream(file);
  std::string line;
  std::getline(stream, line);
  return line;
}

// Parses a list of cores: "0-3,8" gives 0 1 2 3 8.
std::vector<int> listed(const std::string& text) {
  std::vector<int> all;
  std::istringstream ranges(text);
  for (std::string range; std::getline(ranges, range, ',');) {
    std::istringstream numbers(range);
    int first = 0, last = 0;
    char dash = 0;
    if (!(numbers >> first)) continue;
    if (!(numbers >> dash >> last)) last = first;
    for (int core = first; core <= last; ++core) all.push_back(core);
  }
  return all;
}

std::map<int, int> node_of_cores(const std::filesystem::path& folder) {
  std::map<int, int> nodes;
  std::error_code missing;  // kernels without NUMA have no such folder
  for (const auto& entry : std::filesystem::directory_iterator(folder / "node", missing)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with("node") || name.find_first_not_of("0123456789", 4) != std::string::npos || name.size() == 4)
      continue;
    for (const int core : listed(first_line(entry.path() / "cpulist"))) nodes[core] = std::stoi(name.substr(4));
  }
  return nodes;
}

// The cores of a node. The first `used` ones are assigned to replicas.
struct Node {
  std::vector<int> cores;
  std::size_t used = 0;

  std::size_t unused() const { return cores.size() - used; }
};

}  // namespace

int Topology::nodes() const {
  std::set<int> found;
  for (const Core& core : cores) found.insert(core.node);
  return static_cast<int>(found.size());
}

Topology read_topology(const std::filesystem::path& folder, const std::vector<int>& cores) {
  const std::map<int, int> nodes = node_of_cores(folder);
  std::map<std::string, int> members;  // usable cores of each physical core so far
  Topology topology;
  for (const int id : cores) {
    const std::string siblings =
        first_line(folder / "cpu" / ("cpu" + std::to_string(id)) / "topology" / "thread_siblings_list");
    const auto node = nodes.find(id);
    topology.cores.push_back({id, node == nodes.end() ? 0 : node->second, siblings.empty() ? 0 : members[siblings]++});
  }
  return topology;
}

const Topology& host_topology() {
  static const Topology topology = read_topology("/sys/devices/system", process_cores());
  return topology;
}

std::vector<int> in_spreading_order(const Topology& topology) {
  std::vector<Topology::Core> cores = topology.cores;
  std::ranges::stable_sort(cores, {}, &Topology::Core::sibling);
  std::vector<int> ids;
  for (const Topology::Core& core : cores) ids.push_back(core.id);
  return ids;
}

std::vector<std::vector<int>> cores_by_replica(const Topology& topology, int replicas, int threads) {
  const auto each = static_cast<std::size_t>(threads), needed = static_cast<std::size_t>(replicas) * each;
  std::vector<Topology::Core> cores = topology.cores;
  if (needed > cores.size()) return {};
  std::ranges::stable_sort(cores, {}, &Topology::Core::sibling);
  // Cores with a higher sibling number are not needed.
  const int highest = needed == 0 ? 0 : cores[needed - 1].sibling;
  std::map<int, Node> by_node;
  for (const Topology::Core& core : cores)
    if (core.sibling <= highest) by_node[core.node].cores.push_back(core.id);
  const auto take = [](Node& node, std::size_t count, std::vector<int>& to) {
    for (; count > 0; --count) to.push_back(node.cores[node.used++]);
  };
  std::vector<std::vector<int>> all(static_cast<std::size_t>(replicas));
  for (std::vector<int>& own : all) {
    Node& node = std::ranges::max_element(by_node, {}, [](const auto& entry) { return entry.second.unused(); })->second;
    if (node.unused() >= each) take(node, each, own);
  }
  // No node had enough cores for the other replicas. They get the unused cores of several nodes.
  for (std::vector<int>& own : all)
    for (auto& [number, node] : by_node) take(node, std::min(each - own.size(), node.unused()), own);
  std::map<int, int> node_of;
  for (const Topology::Core& core : cores) node_of[core.id] = core.node;
  std::ranges::stable_sort(all, {},
                           [&](const std::vector<int>& own) { return own.empty() ? 0 : node_of[own.front()]; });
  return all;
}

}  // namespace dp::kernels
