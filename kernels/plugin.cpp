#include "kernels/plugin.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <vector>

namespace dp::kernels {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFile = "libdp_cuda.so";
// Of the headers that program and plugin share, and of the compiler (kernels/abi.cmake): equal when both can talk to each other.
constexpr const char* kAbiHash = DP_ABI_HASH;
using Entry = Backend* (*)(const char* abi, const char** own_abi);

Backend* provided = nullptr;

// Of the driver's C interface, which has been stable since its first version; 0 is success.
using InitFunction = int (*)(unsigned flags);
using CountFunction = int (*)(int* count);
using ErrorStringFunction = int (*)(int error, const char** text);

template <typename Function>
Function find(void* library, const char* name) {
  return reinterpret_cast<Function>(dlsym(library, name));
}

std::string describe(void* library, int error) {
  const auto error_string = find<ErrorStringFunction>(library, "cuGetErrorString");
  const char* text = nullptr;
  const bool named = error_string != nullptr && error_string(error, &text) == 0 && text != nullptr;
  return "error " + std::to_string(error) + (named ? std::string(" (") + text + ")" : std::string());
}

// How many devices the driver sees, or why none can be used.
DeviceProbe ask_driver(const char* driver_library) {
  const std::string name = driver_library;
  void* const library =
      dlopen(driver_library, RTLD_NOW | RTLD_LOCAL);  // stays loaded: drivers do not like to be unloaded
  if (library == nullptr) return {0, "no NVIDIA driver (" + name + " not found)"};
  const auto init = find<InitFunction>(library, "cuInit");
  const auto device_count = find<CountFunction>(library, "cuDeviceGetCount");
  if (init == nullptr || device_count == nullptr) return {0, name + " is not an NVIDIA driver (it lacks cuInit)"};
  int error = init(0);
  if (error != 0) return {0, "the NVIDIA driver does not start: cuInit gives " + describe(library, error)};
  int count = 0;
  error = device_count(&count);
  if (error != 0) return {0, "the NVIDIA driver does not list its devices: " + describe(library, error)};
  if (count == 0) return {0, "the NVIDIA driver sees no device"};
  return {count, {}};
}

// Where the plugin may lie, in the order of trying.
std::vector<fs::path> candidates() {
  std::vector<fs::path> files;
  if (const char* const named = std::getenv("DP_PLUGIN_PATH"); named != nullptr && *named != '\0') {
    const std::string list = named;
    for (std::size_t begin = 0; begin <= list.size();) {
      const std::size_t end = std::min(list.find(':', begin), list.size());
      const fs::path entry = list.substr(begin, end - begin);
      std::error_code error;
      if (!entry.empty()) files.push_back(fs::is_directory(entry, error) ? entry / kFile : entry);
      begin = end + 1;
    }
    return files;
  }
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (error) return files;
  return {program.parent_path() / kFile, program.parent_path().parent_path() / "lib" / "dp" / kFile};
}

std::string listed(const std::vector<fs::path>& files) {
  std::string text;
  for (const fs::path& file : files) text += (text.empty() ? "" : ", ") + file.string();
  return text;
}

const LoadedPlugin& loaded_plugin() {
  static const LoadedPlugin plugin = load_plugin();
  return plugin;
}

}  // namespace

LoadedPlugin load_plugin() {
  const std::vector<fs::path> files = candidates();
  for (const fs::path& file : files) {
    std::error_code error;
    if (!fs::exists(file, error)) continue;
    void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return {nullptr, {}, "the CUDA plugin can not be loaded: " + std::string(dlerror())};
    const auto entry = find<Entry>(library, "dp_plugin");
    if (entry == nullptr) return {nullptr, {}, file.string() + " is no plugin of dp (it lacks dp_plugin)"};
    const char* own_abi = "";
    Backend* const backend = entry(kAbiHash, &own_abi);
    if (backend == nullptr)
      return {nullptr,
              {},
              file.string() + " belongs to another build of dp (its interface is " + own_abi + ", this program's " +
                  kAbiHash + ")"};
    return {backend, file.string(), {}};
  }
  return {
      nullptr, {}, "no CUDA plugin was found (looked for " + listed(files) + "; DP_PLUGIN_PATH names other places)"};
}

DeviceProbe probe_cuda(const char* driver_library) {
  if (provided != nullptr) return provided->probe();
  const DeviceProbe driver = ask_driver(driver_library);
  if (driver.count == 0) return driver;
  if (loaded_plugin().backend == nullptr)
    return {0, loaded_plugin().reason + "; the driver sees " + std::to_string(driver.count) +
                   (driver.count == 1 ? " device" : " devices")};
  return loaded_plugin().backend->probe();
}

Backend* cuda_plugin() {
  if (provided != nullptr) return provided;
  return probe_cuda().count > 0 ? loaded_plugin().backend : nullptr;
}

std::string cuda_plugin_path() { return cuda_plugin() == nullptr ? std::string() : loaded_plugin().path; }

void provide_cuda_backend(Backend& backend) { provided = &backend; }

}  // namespace dp::kernels
