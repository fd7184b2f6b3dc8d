// The simulated devices and the owner of each address.
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
  std::atomic<cudaError_t> sticky{cudaSuccess};          // after a failed kernel every call returns it
  std::array<std::atomic<bool>, kMaxDevices> reaches{};  // devices to which peer access is enabled
  std::mutex mutex;                                      // protects the members below
  std::set<const void*> loaded;                          // kernels
};

DeviceState& device(int index);
int current_device();
void set_current_device(int index);

int owner_of(const void* address);  // the device whose range contains the address, or -1
std::string device_name(int index);
// Reports an object of device `index` that is used while another device is current. `what`: "cuDNN: a handle"; `how`:
// "is destroyed".
void must_be_current(int index, const char* what, const char* how);

// Makes the memory of a set of devices accessible while this object exists.
class OpenMemory {
 public:
  explicit OpenMemory(unsigned devices);  // bit i is device i
  ~OpenMemory();
  OpenMemory(const OpenMemory&) = delete;
  OpenMemory& operator=(const OpenMemory&) = delete;

 private:
  unsigned devices_;
};
unsigned reachable_from(int index);  // the device itself and the peers that it can access

// The operation that runs on this thread, for messages.
struct Running {
  const char* what = nullptr;  // null: host code
  int device = -1;
};
inline constinit thread_local Running running{};

}  // namespace dp::simt
