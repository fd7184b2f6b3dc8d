#include "kernels/host/control_groups.h"

#include <fstream>
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
