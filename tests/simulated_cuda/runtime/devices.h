// The simulated devices and which memory belongs to whom.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <mutex>
#include <set>
#include <string>

#include "simulated_cuda/runtime/device_memory.h"
#include "simulated_cuda/simulation.h"

namespace dp::simt {

struct DeviceState {
  DeviceMemory memory;
  std::atomic<cudaError_t> sticky{cudaSuccess};          // after a failed kernel every call fails with it
  std::array<std::atomic<bool>, kMaxDevices> reaches{};  // peer access has been enabled to
  std::mutex mutex;                                      // of what follows
  std::set<const void*> loaded;                          // kernels
};

DeviceState& device(int index);
int current_device();
void set_current_device(int index);

int owner_of(const void* address);  // the device in whose range it lies, or -1
std::string device_name(int index);
// Reports that `what` of device `index`, "cuDNN: a handle", is used while another device is current; `how`: "is destroyed".
void must_be_current(int index, const char* what, const char* how);

// The memory of a device, and of the peers that it reaches, is open while this lives.
class OpenMemory {
 public:
  explicit OpenMemory(unsigned devices);  // a set: bit i is device i
  ~OpenMemory();
  OpenMemory(const OpenMemory&) = delete;
  OpenMemory& operator=(const OpenMemory&) = delete;

 private:
  unsigned devices_;
};
unsigned reachable_from(int index);  // itself and the peers

// What runs on this thread; for messages.
struct Running {
  const char* what = nullptr;  // null: host code
  int device = -1;
};
inline constinit thread_local Running running{};

}  // namespace dp::simt
