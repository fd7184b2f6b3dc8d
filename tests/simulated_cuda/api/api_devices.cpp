#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>

#include "simulated_cuda/driver_lock.h"
#include "simulated_cuda/runtime/devices.h"
#include "simulated_cuda/runtime/errors.h"
#include "simulated_cuda/simulation.h"
#include "simulated_cuda/streams/capture.h"
#include "simulated_cuda/streams/stream.h"

using namespace dp::simt;

namespace {
bool exists(int index) { return index >= 0 && index < simulation().devices; }
}  // namespace

cudaError_t cudaGetDeviceCount(int* count) {
  if (const cudaError_t error = injected_error()) return error;
  *count = simulation().devices;
  return *count == 0 ? failed(cudaErrorNoDevice) : cudaSuccess;
}

cudaError_t cudaSetDevice(int index) {
  if (!exists(index)) return failed(cudaErrorInvalidDevice);
  set_current_device(index);
  return sticky_error(index);
}

cudaError_t cudaGetDevice(int* index) {
  if (const cudaError_t error = injected_error()) return error;
  if (simulation().devices == 0) return failed(cudaErrorNoDevice);
  *index = current_device();
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  may_block("cudaDeviceSynchronize");
  if (const cudaError_t error = refuse_while_capturing("cudaDeviceSynchronize")) return error;
  wait_for_device(current_device());
  return sticky_error(current_device());
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int from, int to) {
  if (const cudaError_t error = injected_error()) return error;
  if (!exists(from) || !exists(to)) return failed(cudaErrorInvalidDevice);
  *can = from != to && simulation().peers[from][to] != Peer::none;
  return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int to, unsigned int flags) {
  const int from = current_device();
  may_block("cudaDeviceEnablePeerAccess");
  if (!exists(to) || to == from) return failed(cudaErrorInvalidDevice);
  if (flags != 0) return failed(cudaErrorInvalidValue);
  if (simulation().peers[from][to] == Peer::none) return failed(cudaErrorPeerAccessUnsupported);
  while (simulation().peers[from][to] == Peer::hangs) std::this_thread::sleep_for(std::chrono::seconds(1));
  if (const cudaError_t error = sticky_error(from)) return error;
  return device(from).reaches[to].exchange(true) ? failed(cudaErrorPeerAccessAlreadyEnabled) : cudaSuccess;
}

cudaError_t cudaDeviceDisablePeerAccess(int to) {
  if (!exists(to)) return failed(cudaErrorInvalidDevice);
  may_block("cudaDeviceDisablePeerAccess");
  wait_for_device(current_device());
  device(current_device()).reaches[to] = false;
  return sticky_error(current_device());
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int index) {
  if (const cudaError_t error = injected_error()) return error;
  if (!exists(index)) return failed(cudaErrorInvalidDevice);
  std::snprintf(text, length, "0000:%02x:00.0", index + 1);
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
