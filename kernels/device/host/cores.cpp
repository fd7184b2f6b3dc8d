#include "kernels/device/host/cores.h"

#include <omp.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <utility>

#include "dp/device.h"
#include "dp/error.h"

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

// Limits on threads by control groups and OpenMP.

namespace {

bool lists(const std::string& names, std::string_view name) {
  std::istringstream list(names);
  for (std::string each; std::getline(list, each, ',');)
    if (each == name) return true;
  return false;
}

// Where a version's hierarchy with this controller is mounted, and which of its groups is at the mount point.
struct Mount {
  std::string folder, root;
};

// Version 1 has a hierarchy per set of controllers. Lines: "36 35 0:26 ROOT FOLDER options - cgroup cgroup rw,cpu".
std::vector<Mount> mounts(int version, std::string_view controller) {
  std::vector<Mount> found;
  std::ifstream file(system_root() + "/proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string skipped, type, source, options;
    Mount mount;
    words >> skipped >> skipped >> skipped >> mount.root >> mount.folder;
    while (words >> skipped && skipped != "-") continue;
    words >> type >> source >> options;
    if (version == 2 ? type == "cgroup2" : type == "cgroup" && lists(options, controller)) found.push_back(mount);
  }
  if (found.empty())
    found.push_back({version == 2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/" + std::string(controller), ""});
  return found;
}

void add(std::vector<ControlGroup>& groups, int version, std::string_view controller, const std::string& path) {
  for (const auto& [folder, root] : mounts(version, controller)) {
    std::string group = path;
    if (root.size() > 1 && group.starts_with(root)) group.erase(0, root.size());
    for (; !group.empty(); group.erase(group.rfind('/') == std::string::npos ? 0 : group.rfind('/')))
      if (group.back() != '/') groups.push_back({folder + group, version});
    groups.push_back({folder, version});
  }
}

}  // namespace

std::string& system_root() {
  static std::string root;
  return root;
}

std::vector<ControlGroup> control_groups(std::string_view controller) {
  std::vector<ControlGroup> groups;
  std::ifstream file(system_root() + "/proc/self/cgroup");  // "4:cpu,memory:/a/b" (v1), "0::/a/b" (v2)
  for (std::string number, controllers, path;
       std::getline(file, number, ':') && std::getline(file, controllers, ':') && std::getline(file, path);) {
    if (number == "0" && controllers.empty()) add(groups, 2, controller, path);
    if (lists(controllers, controller)) add(groups, 1, controller, path);
  }
  return groups;
}

namespace {

constexpr int kMaxCores = 8192;

class Mask {
 public:
  Mask() : set_(CPU_ALLOC(kMaxCores)) { CPU_ZERO_S(bytes(), set_); }
  explicit Mask(std::span<const int> cores) : Mask() {
    for (const int core : cores)
      if (core >= 0 && core < kMaxCores) CPU_SET_S(static_cast<std::size_t>(core), bytes(), set_);
  }
  ~Mask() { CPU_FREE(set_); }
  Mask(const Mask&) = delete;
  Mask& operator=(const Mask&) = delete;

  bool apply() const { return sched_setaffinity(0, bytes(), set_) == 0; }  // to the calling thread
  static std::vector<int> current() {
    Mask mask;
    std::vector<int> cores;
    if (sched_getaffinity(0, bytes(), mask.set_) != 0) return cores;
    for (int core = 0; core < kMaxCores; ++core)
      if (CPU_ISSET_S(static_cast<std::size_t>(core), bytes(), mask.set_)) cores.push_back(core);
    return cores;
  }

 private:
  static std::size_t bytes() { return CPU_ALLOC_SIZE(kMaxCores); }
  cpu_set_t* set_;
};

[[noreturn]] void refuse(int core) {
  std::string usable;
  for (const int one : usable_cores()) usable += (usable.empty() ? "" : ",") + std::to_string(one);
  throw Error(ErrorCode::device, "cannot run a thread on core " + std::to_string(core) +
                                     "; the cores available to this process are " + usable);
}

bool pin(int core) { return Mask(std::span(&core, 1)).apply(); }

std::string cause_of_small_team() {
  const auto limit = largest_team();
  return limit ? limit->source : "the cause is unknown; see the OMP_ variables of the environment";
}

thread_local int pinned_members = 0;  // pinned threads of this thread's OpenMP team

}  // namespace

const std::vector<int>& usable_cores() {
  static const std::vector<int> cores = in_spreading_order(host_topology());
  return cores;
}

void pin_current_thread(int core) {
  if (!pin(core)) refuse(core);
}

void start_current_team(int members) {
  const Mask own(Mask::current());
  static std::atomic<int> started{
      0};  // static: ThreadSanitizer does not see OpenMP pass the address of a local variable
  started.store(0);
#pragma omp parallel num_threads(members)
  ++started;
  own.apply();
  if (started.load() != members)
    throw Error(ErrorCode::device, "OpenMP started " + std::to_string(started.load()) + " of the " +
                                       std::to_string(members) + " threads of a replica (" + cause_of_small_team() +
                                       "); use fewer threads per replica");
}

void pin_current_team(std::span<const int> cores) {
  if (cores.empty()) return;
  if (cores.size() == 1) return pin_current_thread(cores[0]);
  const int members = static_cast<int>(cores.size());
  std::atomic<int> refused{-1};
#pragma omp parallel num_threads(members)
  {
    const int core = cores[static_cast<std::size_t>(omp_get_thread_num())];
    if (!pin(core)) refused.store(core, std::memory_order_relaxed);
  }
  pinned_members = members;
  if (refused.load() >= 0) refuse(refused.load());
}

// The thread state that bind_thread changes. OpenMP also keeps its settings per thread.
struct ThreadKeeper::Saved {
  const std::thread::id owner = std::this_thread::get_id();
  const std::vector<int> cores = Mask::current();
  const int threads = omp_get_max_threads(), dynamic = omp_get_dynamic();

  ~Saved() {
    if (std::this_thread::get_id() != owner || cores.empty()) return;
    const Mask mask(cores);
    mask.apply();
    // Without a pinned team this region would start one.
    if (const int members = std::exchange(pinned_members, 0); members > 1) {
#pragma omp parallel num_threads(members)
      mask.apply();
    }
    omp_set_num_threads(threads);
    omp_set_dynamic(dynamic);
  }
};

ThreadKeeper::ThreadKeeper() {
  static thread_local std::weak_ptr<Saved> of_this_thread;
  saved_ = of_this_thread.lock();
  if (saved_ == nullptr) of_this_thread = saved_ = std::make_shared<Saved>();
}

WithoutTeam::WithoutTeam() : threads_(omp_get_max_threads()) { omp_set_num_threads(1); }
WithoutTeam::~WithoutTeam() { omp_set_num_threads(threads_); }

void unpin_current_thread() { Mask(usable_cores()).apply(); }

}  // namespace dp::kernels

namespace dp {
namespace kernels {
namespace {

// In microseconds of processor time per period.
struct Quota {
  double time = 0, period = 0;
};

// Version 1: -1 is no quota. Version 2: "150000 100000", "max 100000".
std::optional<Quota> quota_of(const std::string& file, const std::string& period_file) {
  std::ifstream text(system_root() + file);
  Quota quota;
  if (!(text >> quota.time) || quota.time <= 0) return {};
  if (!(text >> quota.period)) std::ifstream(system_root() + period_file) >> quota.period;
  if (quota.period <= 0) quota.period = 100'000;  // the kernel's default
  return quota;
}

void take_less(std::optional<CoreLimit>& least, const std::optional<CoreLimit>& other) {
  if (other && (!least || other->cores < least->cores)) least = other;
}

std::string shown(double cores) {
  std::string text = std::to_string(cores);
  text.erase(text.find_last_not_of('0') + 1);
  return text.back() == '.' ? text.substr(0, text.size() - 1) : text;
}

// Read before any code changes the calling thread's number of threads.
const int num_threads = std::getenv("OMP_NUM_THREADS") != nullptr ? omp_get_max_threads() : 0;

std::optional<CoreLimit> thread_limit() {
  const int limit = omp_get_thread_limit();
  if (limit == std::numeric_limits<int>::max()) return {};
  return CoreLimit{limit, "OMP_THREAD_LIMIT=" + std::to_string(limit)};
}

}  // namespace

std::optional<CoreLimit> cpu_quota() {
  std::optional<CoreLimit> least;
  for (const ControlGroup& group : control_groups("cpu")) {
    const std::string file = group.folder + (group.version == 1 ? "/cpu.cfs_quota_us" : "/cpu.max");
    const auto quota = quota_of(file, group.folder + "/cpu.cfs_period_us");
    if (!quota) continue;
    const double cores = quota->time / quota->period;
    const double whole = std::clamp(std::ceil(cores - 1e-9), 1.0, 1e6);
    take_less(least, CoreLimit{static_cast<int>(whole),
                               "the CPU quota " + file + " of " + shown(cores) + (cores == 1 ? " core" : " cores")});
  }
  return least;
}

std::optional<CoreLimit> largest_team() {
  if (const int most = omp_get_max_active_levels(); most < 1)
    return CoreLimit{1, "OMP_MAX_ACTIVE_LEVELS=" + std::to_string(most)};
  else if (omp_get_active_level() >= most)
    return CoreLimit{1, "the caller's OpenMP parallel region, in which no other may start a team"};
  return thread_limit();
}

}  // namespace kernels

CoreLimit available_cores(int processes) {
  const int mask = static_cast<int>(process_cores().size());
  CoreLimit host{mask, mask < ::sysconf(_SC_NPROCESSORS_ONLN) ? "the affinity mask (taskset, cpuset)" : ""};
  if (const auto quota = kernels::cpu_quota(); quota && quota->cores < host.cores) host = *quota;
  host.cores = std::max(1, host.cores / std::max(1, processes));
  std::optional<CoreLimit> least = host;
  if (kernels::num_threads > 0)
    kernels::take_less(least,
                       CoreLimit{kernels::num_threads, "OMP_NUM_THREADS=" + std::to_string(kernels::num_threads)});
  kernels::take_less(least, kernels::thread_limit());
  return *least;
}

std::string to_string(const CoreLimit& limit) {
  return std::to_string(limit.cores) + (limit.cores == 1 ? " core" : " cores") + " available to this process" +
         (limit.source.empty() ? "" : ", limited by " + limit.source);
}

}  // namespace dp
