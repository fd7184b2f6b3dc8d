// Names of devices. A Device owns nothing and opens nothing.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace dp {

enum class DeviceKind {
  cpu,        // oneDNN and plain C++, float32
  cuda,       // one GPU
  reference,  // naive loops in float64 on the host: the oracle of the tests
};

struct Device {
  DeviceKind kind = DeviceKind::cpu;
  int index = 0;  // position among the devices of its kind; all CPU replicas are index 0

  friend bool operator==(const Device&, const Device&) = default;
};

std::string to_string(Device device);        // "cpu", "cuda:1", "reference"
Device parse_device(std::string_view text);  // Error(usage) for anything else

std::vector<Device> cpus(int replicas);                     // the CPU so many times
std::vector<Device> gpus(const std::vector<int>& indices);  // cuda:i for each index, in this order

// Parses "0,2", "0-3", "all" against `count` visible GPUs. Error(usage) for unknown, out-of-range or
// repeated ids, listing the valid ones.
std::vector<int> parse_gpu_list(std::string_view text, int count);

// The cores of this process, ascending: those it was started with (taskset, cpuset). A mask of one core is widened to all
// that the kernel permits where the environment shows that OpenMP, MPI or Slurm binds (OMP_PROC_BIND, OMP_PLACES,
// GOMP_CPU_AFFINITY, OMPI_COMM_WORLD_RANK, PMI_RANK, PMIX_RANK, SLURM_CPU_BIND).
const std::vector<int>& process_cores();

struct DeviceProbe {
  int count = 0;
  std::string reason;  // why count is 0; empty otherwise
};
// How many devices of that kind this process can use. Never throws, makes no context.
DeviceProbe probe_devices(DeviceKind kind);

// System, processor, devices, drivers, libraries and their versions, a line each, and which GPU reaches which other one's memory (that is
// tried out, once for each start of the machine): what one pastes into a report. Error(device) when a GPU does not answer.
std::string describe_environment();

}  // namespace dp
