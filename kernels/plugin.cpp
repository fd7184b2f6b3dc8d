#include "kernels/plugin.h"

#include <dlfcn.h>

namespace dp::kernels {
namespace {

// Of the driver's C interface, which has been stable since its first version; 0 is success.
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

}  // namespace

DeviceProbe probe_cuda(const char* driver_library) {
  const std::string name = driver_library;
  void* const library =
      dlopen(driver_library, RTLD_NOW | RTLD_LOCAL);  // stays loaded: drivers do not like to be unloaded
  if (library == nullptr) return {0, "no NVIDIA driver (" + name + " not found)"};
  const auto init = find<InitFunction>(library, "cuInit");
  const auto device_count = find<CountFunction>(library, "cuDeviceGetCount");
  if (init == nullptr || device_count == nullptr) return {0, name + " is not an NVIDIA driver (it lacks cuInit)"};
  int error = init(0);
  if (error != 0) return {0, "the NVIDIA driver does not start: cuInit gives " + describe(library, error)};
  int count = 0;
  error = device_count(&count);
  if (error != 0) return {0, "the NVIDIA driver does not list its devices: " + describe(library, error)};
  if (count == 0) return {0, "the NVIDIA driver sees no device"};
  return {0, "this build has no CUDA backend (the driver sees " + std::to_string(count) +
                 (count == 1 ? " device)" : " devices)")};
}

}  // namespace dp::kernels
