#include "kernels/cuda/describe_devices.h"

#include <cuda_runtime_api.h>

#include <numeric>

#include "kernels/cuda/comm/peers.h"
#include "kernels/cuda/runtime/check.h"
#include "kernels/cuda/vendor/libraries.h"

namespace dp::kernels::cuda {
namespace {

// 13000: "13.0"
std::string release(int version) { return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10); }

std::string describe_device(int device) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device), "reading device properties");
  char bus[32] = "";
  check(cudaDeviceGetPCIBusId(bus, sizeof bus, device), "reading the bus id");
  return std::string(properties.name) + ", compute capability " + std::to_string(properties.major) + "." +
         std::to_string(properties.minor) + ", " + std::to_string(properties.multiProcessorCount) +
         " multiprocessors, " + std::to_string(properties.totalGlobalMem >> 20) + " MiB, bus " + bus;
}

}  // namespace

std::string describe_devices(int count) {
  int driver = 0, runtime = 0;
  check(cudaDriverGetVersion(&driver), "reading the driver version");
  check(cudaRuntimeGetVersion(&runtime), "reading the runtime version");
  std::string text =
      "CUDA        runtime " + release(runtime) + ", driver for " + release(driver) + "\n" + describe_libraries();
  std::vector<int> devices(static_cast<std::size_t>(count));
  std::iota(devices.begin(), devices.end(), 0);
  for (const int device : devices) text += "cuda:" + std::to_string(device) + "      " + describe_device(device) + "\n";
  const auto paths = peer_paths(devices);
  for (std::size_t reader = 0; reader < paths.size(); ++reader)
    for (std::size_t owner = 0; owner < paths.size(); ++owner)
      if (reader != owner)
        text += "peers       cuda:" + std::to_string(reader) + " reads cuda:" + std::to_string(owner) + ": " +
                to_string(paths[reader][owner]) + "\n";
  return text;
}

}  // namespace dp::kernels::cuda
