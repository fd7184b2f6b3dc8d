#include "kernels/device/plugin.h"

#include <dlfcn.h>

#include <cstdlib>

#include "kernels/device/plugin_file.h"

namespace dp::kernels {
namespace {

Backend* provided = nullptr;

// Functions of the CUDA driver API, a stable C interface. They return 0 on success.
using InitFunction = int (*)(unsigned flags);
using CountFunction = int (*)(int* count);
using ErrorStringFunction = int (*)(int error, const char** text);

template <typename Function>
Function find(void* library, const char* name) {
  return reinterpret_cast<Function>(dlsym(library, name));
}

std::string describe(void* library, int error) {
  const auto error_string = find<ErrorStringFunction>(library, "cuGetErrorString");
  const char* text = nullptr;
  const bool named = error_string != nullptr && error_string(error, &text) == 0 && text != nullptr;
  return "error " + std::to_string(error) + (named ? std::string(" (") + text + ")" : std::string());
}

// The number of devices that the driver reports, or why none can be used.
DeviceProbe ask_driver(const char* driver_library) {
  const std::string name = driver_library;
  void* const library = dlopen(driver_library, RTLD_NOW | RTLD_LOCAL);  // never closed: unloading a driver is unsafe
  if (library == nullptr) return {0, "no NVIDIA driver (" + name + " not found)"};
  const auto init = find<InitFunction>(library, "cuInit");
  const auto device_count = find<CountFunction>(library, "cuDeviceGetCount");
  if (init == nullptr || device_count == nullptr) return {0, name + " is not an NVIDIA driver (it lacks cuInit)"};
  // Eager loading would load all of NCCL, cuDNN and cuBLASLt: seconds, and hundreds of MB on each device. The kernels
  // of a step are loaded before the step (kernels/device/cuda/runtime.h).
  ::setenv("CUDA_MODULE_LOADING", "LAZY", 0);
  int error = init(0);
  if (error != 0) return {0, "the NVIDIA driver cannot be initialised: cuInit returned " + describe(library, error)};
  int count = 0;
  error = device_count(&count);
  if (error != 0) return {0, "the NVIDIA driver cannot list its devices: " + describe(library, error)};
  if (count == 0) return {0, "the NVIDIA driver reports no device"};
  return {count, {}};
}

const LoadedPlugin& loaded_plugin() {
  static const LoadedPlugin plugin = load_plugin();
  return plugin;
}

}  // namespace

LoadedPlugin load_plugin() {
  const PluginFile plugin = load_plugin_file("libdp_cuda.so", "dp_plugin", "CUDA plugin");
  return {static_cast<Backend*>(plugin.interface), plugin.path, plugin.reason};
}

DeviceProbe probe_cuda(const char* driver_library) {
  if (provided != nullptr) return provided->probe();
  const DeviceProbe driver = ask_driver(driver_library);
  if (driver.count == 0) return driver;
  if (loaded_plugin().backend == nullptr)
    return {0, loaded_plugin().reason + "; the driver reports " + std::to_string(driver.count) +
                   (driver.count == 1 ? " device" : " devices")};
  return loaded_plugin().backend->probe();
}

int devices_seen_by_driver(const char* driver_library) {
  return provided != nullptr ? 0 : ask_driver(driver_library).count;
}

Backend* cuda_plugin(std::string* why_not) {
  if (provided != nullptr) return provided;
  const DeviceProbe probe = probe_cuda();
  if (probe.count > 0) return loaded_plugin().backend;
  if (why_not != nullptr) *why_not = probe.reason;
  return nullptr;
}

std::string cuda_plugin_path() { return cuda_plugin() == nullptr ? std::string() : loaded_plugin().path; }

void provide_cuda_backend(Backend& backend) { provided = &backend; }

}  // namespace dp::kernels
