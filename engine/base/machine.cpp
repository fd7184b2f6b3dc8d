// What this process may use of the machine: cores, memory and devices.
#include "engine/base/machine.h"

#include <malloc.h>
#include <omp.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <vector>

#include "dp/default_devices.h"
#include "dp/device.h"
#include "dp/error.h"
#include "dp/memory.h"
#include "kernels/device/host/memory.h"
#include "kernels/device/plugin.h"

namespace dp {
namespace {

constexpr int kMaxCores = 8192;  // one cpu_set_t has 1,024
using Mask = std::array<cpu_set_t, kMaxCores / CPU_SETSIZE>;

std::vector<int> cores_of(const Mask& mask) {
  std::vector<int> cores;
  for (int core = 0; core < kMaxCores; ++core)
    if (CPU_ISSET_S(static_cast<std::size_t>(core), sizeof mask, mask.data())) cores.push_back(core);
  return cores;
}

std::vector<int> current_cores() {
  Mask mask{};
  if (sched_getaffinity(0, sizeof mask, mask.data()) != 0) return {};
  return cores_of(mask);
}

// Runs during static initialisation, before the engine pins any thread. If OpenMP has already bound this thread, its
// places give the original mask.
std::vector<int> mask_at_start() {
  std::vector<int> cores;
  for (int place = 0; place < omp_get_num_places(); ++place) {
    std::vector<int> members(static_cast<std::size_t>(omp_get_place_num_procs(place)));
    omp_get_place_proc_ids(place, members.data());
    cores.insert(cores.end(), members.begin(), members.end());
  }
  std::sort(cores.begin(), cores.end());
  cores.erase(std::unique(cores.begin(), cores.end()), cores.end());
  return cores.empty() ? current_cores() : cores;
}

// Whether the environment shows a tool that binds processes or threads: OpenMP, Open MPI, PMI (MPICH), Slurm.
bool has_binding_tool() {
  constexpr std::array marks{"OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "OMPI_COMM_WORLD_RANK",
                             "PMI_RANK",      "PMIX_RANK",  "SLURM_CPU_BIND"};
  return std::any_of(marks.begin(), marks.end(), [](const char* mark) { return std::getenv(mark) != nullptr; });
}

// The cpuset of the process: the cores that the kernel leaves of a mask of all cores.
std::vector<int> permitted() {
  Mask mine{}, all{};
  for (int core = 0; core < kMaxCores; ++core) CPU_SET_S(static_cast<std::size_t>(core), sizeof all, all.data());
  if (sched_getaffinity(0, sizeof mine, mine.data()) != 0) return {};
  if (sched_setaffinity(0, sizeof all, all.data()) != 0) return {};
  std::vector<int> cores = current_cores();
  sched_setaffinity(0, sizeof mine, mine.data());
  return cores;
}

std::vector<int> find_cores() {
  std::vector<int> cores = mask_at_start();
  if (cores.empty() || (cores.size() == 1 && has_binding_tool())) {
    std::vector<int> wider = permitted();
    if (wider.size() > cores.size()) cores = std::move(wider);
  }
  if (cores.empty()) cores.push_back(0);
  return cores;
}

const std::vector<int> found = find_cores();

}  // namespace

const std::vector<int>& process_cores() { return found; }

std::uint64_t available_memory() {
  if (const auto room = kernels::host_room()) return room->bytes;
  return static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

void return_freed_memory() {
  ::mallopt(M_MMAP_THRESHOLD, 1 << 20);
  ::mallopt(M_TRIM_THRESHOLD, 1 << 20);
}

std::vector<Device> default_devices() {
  const DeviceProbe probe = probe_devices(DeviceKind::cuda);
  if (probe.count > 0) return gpus(parse_gpu_list("all", probe.count));
  if (kernels::devices_seen_by_driver() == 0) return cpus(2);
  throw Error(ErrorCode::device, "no usable GPU: " + probe.reason + "; to train on the CPU, pass cpus(N) as devices");
}

}  // namespace dp
