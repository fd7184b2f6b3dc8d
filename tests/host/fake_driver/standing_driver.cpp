// A driver library that hangs in its first call, in a program into which tests/apps/standing_calls.cpp is preloaded.
extern "C" void dp_stand_in_driver();
extern "C" int cuInit(unsigned) {
  dp_stand_in_driver();
  return 100;
}
extern "C" int cuDeviceGetCount(int*) { return 100; }
