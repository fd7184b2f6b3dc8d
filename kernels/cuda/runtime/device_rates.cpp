#include "kernels/cuda/runtime/device_rates.h"

#include <cuda_runtime_api.h>

#include "kernels/cuda/runtime/check.h"

namespace dp::kernels::cuda {
namespace {

// Multiply-adds per clock and multiprocessor: `f32` for float32; `low` for 16-bit floats with float32 accumulation on
// tensor cores, without sparsity. Sources: "Arithmetic Instructions" in the CUDA C++ Programming Guide, and the
// architectures' white papers.
struct Generation {
  int capability;
  double f32, low;
};
constexpr Generation kGenerations[] = {{75, 64, 512},   {80, 64, 1024},   {86, 128, 512},   {89, 128, 512},
                                       {90, 128, 2048}, {100, 128, 4096}, {103, 128, 4096}, {120, 128, 512}};

double attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, device), "reading a device attribute");
  return value;
}

}  // namespace

Rates device_rates(int device, DType type) {
  const int capability = static_cast<int>(10 * attribute(cudaDevAttrComputeCapabilityMajor, device) +
                                          attribute(cudaDevAttrComputeCapabilityMinor, device));
  for (const Generation& generation : kGenerations) {
    if (generation.capability != capability) continue;
    const double clock = 1e3 * attribute(cudaDevAttrClockRate, device);
    const double each = size_of(type) == 2 ? generation.low : generation.f32;
    const double bits = attribute(cudaDevAttrGlobalMemoryBusWidth, device);
    return {2 * each * clock * attribute(cudaDevAttrMultiProcessorCount, device),
            2e3 * attribute(cudaDevAttrMemoryClockRate, device) * bits / 8, "by its clocks"};
  }
  return {};
}

}  // namespace dp::kernels::cuda
