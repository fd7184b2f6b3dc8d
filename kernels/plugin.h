// The CUDA backend is a library that is loaded at run time, so that one program runs with and without a driver. This finds out whether
// the process can use CUDA devices, and loads it; without linking to anything of CUDA.
#pragma once

#include <string>

#include "dp/device.h"
#include "kernels/backend.h"

namespace dp::kernels {

// Looks for the driver library, starts it and asks it for devices; makes no context. Then loads the plugin. Never throws.
DeviceProbe probe_cuda(const char* driver_library = "libcuda.so.1");

// How many devices the driver sees, whether or not a plugin serves them; 0 where a program provides its own backend. Never throws.
int devices_seen_by_driver(const char* driver_library = "libcuda.so.1");

// The plugin's backend; null when probe_cuda() has found none. Loaded once for the whole process.
Backend* cuda_plugin();
// The file that cuda_plugin() came from; empty when there is none.
std::string cuda_plugin_path();

// For programs that link the CUDA backend instead of loading it: from now on that is what the process uses, asked for its devices
// without a look at the driver.
void provide_cuda_backend(Backend& backend);

struct LoadedPlugin {
  Backend* backend = nullptr;
  std::string path, reason;  // reason: why backend is null
};
// Looks for it as plugin_file.h says.
LoadedPlugin load_plugin();

}  // namespace dp::kernels
