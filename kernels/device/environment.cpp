#include <dlfcn.h>
#include <sys/utsname.h>

#include <cstdlib>
#include <fstream>

#include "dp/device.h"
#include "kernels/comm/mpi/mpi_plugin.h"
#include "kernels/device/backend.h"
#include "kernels/device/host/cores.h"
#include "kernels/device/plugin.h"

namespace dp {
namespace {

std::string line(const std::string& what, const std::string& value) {
  return what + std::string(what.size() < 12 ? 12 - what.size() : 1, ' ') + value + "\n";
}

std::string processor() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string text; std::getline(file, text);)
    if (text.rfind("model name", 0) == 0) return text.substr(text.find(':') + 2);
  return "unknown processor";
}

std::string system_name() {
  utsname names{};
  if (uname(&names) != 0) return "unknown";
  return std::string(names.sysname) + " " + names.release + " " + names.machine;
}

// Version of an optional library: `file`, or what the environment variable names. `function` returns the number, or
// writes it to an int if `through_pointer`.
std::string version_of(const char* file, const char* function, bool through_pointer, const char* variable = nullptr) {
  if (const char* const named = variable == nullptr ? nullptr : std::getenv(variable);
      named != nullptr && *named != '\0') {
    if (const std::string reason = kernels::relative_library(variable, named); !reason.empty()) return reason;
    file = named;
  }
  void* const library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return "not found";
  void* const address = dlsym(library, function);
  if (address == nullptr) return std::string(file) + " without " + function;
  int version = 0;
  if (through_pointer)
    reinterpret_cast<int (*)(int*)>(address)(&version);
  else
    version = static_cast<int>(reinterpret_cast<std::size_t (*)()>(address)());
  return std::to_string(version) + " (" + file + ")";
}

std::string host_text() {
  const int nodes = kernels::host_topology().nodes();
  const std::string places = nodes > 1 ? ", on " + std::to_string(nodes) + " NUMA nodes" : "";
  return line("system", system_name()) + line("processor", processor() + ", " + to_string(available_cores()) + places) +
         line("compiler", __VERSION__);
}

std::string cuda_text() {
  const DeviceProbe probe = probe_devices(DeviceKind::cuda);
  std::string text = line("driver", version_of("libcuda.so.1", "cuDriverGetVersion", true));
  if (probe.count == 0)
    return text + line("CUDA", "not used: " + probe.reason) +
           line("cuDNN", version_of("libcudnn.so.9", "cudnnGetVersion", false, "DP_CUDNN_LIBRARY"));
  text += line("plugin", kernels::cuda_plugin_path());
  return text + kernels::backend(DeviceKind::cuda).describe();
}

}  // namespace

std::string describe_environment(DeviceKind kind) {
  std::string text = host_text();
  if (kind != DeviceKind::cuda) return text + kernels::backend(DeviceKind::cpu).describe();
  return text + line("plugin", kernels::cuda_plugin_path()) + kernels::backend(DeviceKind::cuda).describe();
}

std::string describe_environment() {
  std::string text = host_text() + kernels::backend(DeviceKind::cpu).describe();
  text += cuda_text();
  text += line("NCCL", version_of("libnccl.so.2", "ncclGetVersion", true, "DP_NCCL_LIBRARY"));
  const kernels::Mpi* const mpi = kernels::mpi_plugin();
  text += line("MPI", mpi != nullptr ? mpi->version() : "not used: " + kernels::mpi_reason());
  return text;
}

}  // namespace dp
