// A plugin of another build: refuses every program.
extern "C" void* dp_plugin(const char*, const char** own_abi) {
  *own_abi = "other-hash";
  return nullptr;
}
