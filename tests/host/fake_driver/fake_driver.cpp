// A fake CUDA driver library with results fixed at compile time: for probe_test.cpp and programs on simulated GPUs.
#include <cstdio>

extern "C" int cuInit(unsigned) { return DP_FAKE_INIT; }
extern "C" int cuDeviceGetCount(int* count) {
  *count = DP_FAKE_COUNT;
  return 0;
}
extern "C" int cuGetErrorString(int error, const char** text) {
  *text = error == 100 ? "no CUDA-capable device is detected" : nullptr;
  return error == 100 ? 0 : 1;
}
// Also called by benchmarks/gpu/gpus.py: a device of compute capability 9.0, a driver for CUDA 13.0.
extern "C" int cuDriverGetVersion(int* version) {
  *version = 13000;
  return 0;
}
extern "C" int cuDeviceGet(int* device, int index) {
  *device = index;
  return 0;
}
extern "C" int cuDeviceGetName(char* name, int length, int device) {
  std::snprintf(name, static_cast<std::size_t>(length), "simulated GPU %d", device);
  return 0;
}
extern "C" int cuDeviceGetAttribute(int* value, int attribute, int) {
  constexpr int kMajor = 75;
  *value = attribute == kMajor ? 9 : 0;
  return 0;
}
