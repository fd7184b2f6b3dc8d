#include "kernels/device/cuda/check.h"

#include "dp/error.h"
#include "kernels/device/cuda/launch.h"

namespace dp::kernels::cuda {
namespace {

thread_local LaunchNames* launch_names = nullptr;

std::string extent(const dim3& size) {
  return std::to_string(size.x) + "x" + std::to_string(size.y) + "x" + std::to_string(size.z);
}

thread_local int loadings = 0;

}  // namespace

KernelLoading::KernelLoading() { ++loadings; }
KernelLoading::~KernelLoading() { --loadings; }
bool KernelLoading::active() { return loadings > 0; }

void load_kernel(const void* function, const Launch& launch) {
  cudaFuncAttributes attributes{};
  check_launch(cudaFuncGetAttributes(&attributes, function), launch);
}

std::string describe(cudaError_t error) {
  return std::string(cudaGetErrorName(error)) + " (" + cudaGetErrorString(error) + ")";
}

std::string current_device() {
  int device = 0;
  return cudaGetDevice(&device) == cudaSuccess ? "cuda:" + std::to_string(device) : "cuda";
}

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // clears a non-sticky error, which the next call would return again
  throw Error(ErrorCode::device, std::string(what) + " failed on " + current_device() + ": " + describe(error));
}

LaunchNames::LaunchNames() { launch_names = this; }
LaunchNames::~LaunchNames() { launch_names = nullptr; }

void check_launch(cudaError_t error, const Launch& launch) {
  if (error == cudaSuccess) return;
  cudaGetLastError();
  throw Error(ErrorCode::device, std::string("kernel ") + launch.kernel + " (grid " + extent(launch.grid) + ", block " +
                                     extent(launch.block) + ", " + std::to_string(launch.shared_bytes) +
                                     " bytes of shared memory) failed on " + current_device() + ": " + describe(error));
}

void check_launched(cudaError_t error, const Launch& launch) {
  if (launch_names != nullptr) launch_names->names.emplace_back(launch.kernel);
  check_launch(error, launch);
}

}  // namespace dp::kernels::cuda
