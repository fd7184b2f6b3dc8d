// A driver library for probe_test.cpp that answers as compiled.
extern "C" int cuInit(unsigned) { return DP_FAKE_INIT; }
extern "C" int cuDeviceGetCount(int* count) {
  *count = DP_FAKE_COUNT;
  return 0;
}
extern "C" int cuGetErrorString(int error, const char** text) {
  *text = error == 100 ? "no CUDA-capable device is detected" : nullptr;
  return error == 100 ? 0 : 1;
}
