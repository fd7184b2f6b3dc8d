#include "simulated_cuda/runtime/devices.h"

#include "simulated_cuda/api/kernel_call.h"
#include "simulated_cuda/runtime/errors.h"

namespace dp::simt {
namespace {
thread_local int current = 0;
}

DeviceState& device(int index) {
  static auto& devices = *new std::array<DeviceState, kMaxDevices>;  // threads may outlive statics
  return devices[index];
}

int current_device() { return current; }
void set_current_device(int index) { current = index; }

int owner_of(const void* address) {
  for (int i = 0; i < kMaxDevices; ++i)
    if (device(i).memory.owns(address)) return i;
  return -1;
}

bool is_device_address(const void* address) { return owner_of(address) >= 0; }

void must_be_current(int index, const char* what, const char* how) {
  if (index != current_device())
    report(std::string(what) + " of " + device_name(index) + " " + how + " while " + device_name(current_device()) +
           " is current");
}

std::string device_name(int index) { return "cuda:" + std::to_string(index); }

OpenMemory::OpenMemory(unsigned devices) : devices_(devices) {
  for (int i = 0; i < kMaxDevices; ++i)
    if ((devices_ >> i & 1) != 0) device(i).memory.open();
}

OpenMemory::~OpenMemory() {
  for (int i = 0; i < kMaxDevices; ++i)
    if ((devices_ >> i & 1) != 0) device(i).memory.close();
}

unsigned reachable_from(int index) {
  unsigned set = 1u << index;
  for (int i = 0; i < kMaxDevices; ++i)
    if (device(index).reaches[i]) set |= 1u << i;
  return set;
}

}  // namespace dp::simt
