// Names of devices. A Device is a plain value: it owns no resource.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace dp {

enum class DeviceKind {
  cpu,        // oneDNN and plain C++, float32
  cuda,       // one GPU
  reference,  // naive float64 loops on the host; the tests compare with it
};

struct Device {
  DeviceKind kind = DeviceKind::cpu;
  int index = 0;  // position among the devices of its kind; all CPU replicas are index 0

  friend bool operator==(const Device&, const Device&) = default;
};

std::string to_string(Device device);        // "cpu", "cuda:1", "reference"
Device parse_device(std::string_view text);  // Error(usage) for anything else

std::vector<Device> cpus(int replicas);                     // the CPU, once per replica
std::vector<Device> gpus(const std::vector<int>& indices);  // cuda:i for each index, in this order

// Parses "0,2", "0-3" or "all" against `count` visible GPUs. Error(usage) for unknown, out-of-range or repeated ids
// lists the valid ones.
std::vector<int> parse_gpu_list(std::string_view text, int count);

// The cores of this process, ascending: the affinity mask at its start (taskset, cpuset). A mask of one core is widened
// to all cores that the kernel permits if the environment shows binding by OpenMP, MPI or Slurm (OMP_PROC_BIND,
// OMP_PLACES, GOMP_CPU_AFFINITY, OMPI_COMM_WORLD_RANK, PMI_RANK, PMIX_RANK, SLURM_CPU_BIND).
const std::vector<int>& process_cores();

struct CoreLimit {
  int cores = 1;
  std::string source;  // what sets the limit: "OMP_THREAD_LIMIT=2"; empty: the machine has no more cores
};
// How many threads this process should run at once, at least 1: the least of process_cores(), the CPU quotas of its
// control groups (v1 and v2, parents too; a fraction is rounded up), OMP_NUM_THREADS and OMP_THREAD_LIMIT. `processes`
// of the host share the first two; the variables hold for each process.
CoreLimit available_cores(int processes = 1);
std::string to_string(const CoreLimit& limit);  // "2 cores available to this process, limited by OMP_THREAD_LIMIT=2"

struct DeviceProbe {
  int count = 0;
  std::string reason;  // why count is 0; empty otherwise
};
// Counts the devices of that kind that this process can use. Never throws, creates no context.
DeviceProbe probe_devices(DeviceKind kind);

// The folders in which plugins are searched, in this order, unless DP_PLUGIN_PATH is set (docs/decisions/0029):
// - the absolute folders in the run path of the program or shared library that contains dp;
// - the folder of that file, then its ../lib/dp;
// - the folder of the program, then its ../lib/dp.
std::vector<std::string> plugin_folders();

// For bug reports: system, processor, devices, drivers, libraries and their versions, one per line, and which GPU can
// access the memory of which other GPU (tested once per boot of the machine). Error(device) if a GPU does not respond.
std::string describe_environment();
// The same for a run on this kind of device: without what the run does not use.
std::string describe_environment(DeviceKind kind);

}  // namespace dp
