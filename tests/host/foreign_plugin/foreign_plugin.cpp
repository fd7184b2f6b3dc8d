// A plugin of another build: reports another ABI hash and returns no entry, so that no program can load it.
extern "C" void* dp_plugin(const char*, const char** own_abi) {
  *own_abi = "other-hash";
  return nullptr;
}
