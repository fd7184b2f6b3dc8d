// Loads the CUDA backend, a plugin, at run time, so that one program runs with and without a driver. Links to no CUDA
// library.
#pragma once

#include <string>
#include <string_view>

#include "dp/device.h"
#include "kernels/device/backend.h"

namespace dp::kernels {

// Loads and initialises the driver library and counts its devices, without creating a CUDA context. Then loads the
// plugin and probes it. Never throws.
DeviceProbe probe_cuda(const char* driver_library = "libcuda.so.1");

// Number of devices that the driver reports, with or without a plugin for them; 0 after provide_cuda_backend(). Never
// throws.
int devices_seen_by_driver(const char* driver_library = "libcuda.so.1");

// The plugin's backend, loaded once per process; null if probe_cuda() finds no device. `why_not`: its reason then.
Backend* cuda_plugin(std::string* why_not = nullptr);
// The plugin's file; empty if there is no plugin.
std::string cuda_plugin_path();

// For programs that link the CUDA backend instead of loading it. The process uses `backend` from now on and probes it
// without loading the driver.
void provide_cuda_backend(Backend& backend);

struct LoadedPlugin {
  Backend* backend = nullptr;
  std::string path, reason;  // reason: why backend is null
};
// Searches as load_plugin_file() does.
LoadedPlugin load_plugin();

// Libraries and programs that environment variables name.

// Why the value of an environment variable names no library, or empty. A library is an absolute path, or a name that
// the loader searches. A relative path would load a file of whatever folder the program is started in.
inline std::string relative_library(const std::string& variable, std::string_view value) {
  if (value.starts_with('/') || value.find('/') == std::string_view::npos) return {};
  return variable + " is " + std::string(value) +
         ", a path that depends on the working folder; set an absolute path, or a file name without folders";
}

}  // namespace dp::kernels
