// What describe_environment() tells.
#include <dlfcn.h>
#include <sys/utsname.h>

#include <cstdlib>
#include <fstream>

#include "dp/device.h"
#include "kernels/backend.h"
#include "kernels/host/cores.h"
#include "kernels/mpi_plugin.h"
#include "kernels/plugin.h"

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

// Of a library that may be there: the number that its function gives, or tells through a pointer.
std::string version_of(std::initializer_list<const char*> files, const char* function, bool through_pointer) {
  for (const char* const file : files) {
    void* const library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) continue;
    std::string text = std::string(file) + " without " + function;
    if (void* const address = dlsym(library, function)) {
      int version = 0;
      if (through_pointer)
        reinterpret_cast<int (*)(int*)>(address)(&version);
      else
        version = static_cast<int>(reinterpret_cast<std::size_t (*)()>(address)());
      text = std::to_string(version) + " (" + file + ")";
    }
    return text;
  }
  return "not found";
}

std::string cuda_text() {
  const DeviceProbe probe = probe_devices(DeviceKind::cuda);
  std::string text = line("driver", version_of({"libcuda.so.1"}, "cuDriverGetVersion", true));
  if (probe.count == 0) return text + line("CUDA", "not used: " + probe.reason);
  text += line("plugin", kernels::cuda_plugin_path());
  return text + kernels::backend(DeviceKind::cuda).describe();
}

}  // namespace

std::string describe_environment() {
  std::string text = line("system", system_name());
  text +=
      line("processor", processor() + ", " + std::to_string(kernels::usable_cores().size()) + " cores to this process");
  text += line("compiler", __VERSION__);
  text += kernels::backend(DeviceKind::cpu).describe();
  text += cuda_text();
  text += line("cuDNN", version_of({"libcudnn.so.9"}, "cudnnGetVersion", false));
  const char* const nccl = std::getenv("DP_NCCL_LIBRARY");
  text += line("NCCL", version_of({nccl != nullptr && *nccl != '\0' ? nccl : "libnccl.so.2"}, "ncclGetVersion", true));
  const kernels::Mpi* const mpi = kernels::mpi_plugin();
  text += line("MPI", mpi != nullptr ? mpi->version() : "not used: " + kernels::mpi_reason());
  return text;
}

}  // namespace dp
