// A fake driver library whose first call hangs. The program must preload tests/apps/standing_calls.cpp.
extern "C" void dp_stand_in_driver();
extern "C" int cuInit(unsigned) {
  dp_stand_in_driver();
  return 100;
}
extern "C" int cuDeviceGetCount(int*) { return 100; }
