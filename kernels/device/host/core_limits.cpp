// Limits on threads by control groups and OpenMP.
#include "kernels/device/host/cores.h"

#include <omp.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <sstream>

namespace dp::kernels {
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
