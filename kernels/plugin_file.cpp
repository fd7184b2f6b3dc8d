#include "kernels/plugin_file.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <vector>

namespace dp::kernels {
namespace {

namespace fs = std::filesystem;

using Entry = void* (*)(const char* abi, const char** own_abi);

// Where the plugin may lie, in the order of trying. A file named in DP_PLUGIN_PATH counts for the plugin of that name; one with
// a name that no plugin of ours has, for each.
std::vector<fs::path> candidates(const std::string& file) {
  std::vector<fs::path> files;
  if (const char* const named = std::getenv("DP_PLUGIN_PATH"); named != nullptr && *named != '\0') {
    const std::string list = named;
    for (std::size_t begin = 0; begin <= list.size();) {
      const std::size_t end = std::min(list.find(':', begin), list.size());
      const fs::path entry = list.substr(begin, end - begin);
      begin = end + 1;
      std::error_code error;
      if (entry.empty()) continue;
      if (fs::is_directory(entry, error)) {
        files.push_back(entry / file);
      } else if (const auto name = entry.filename().string(); name == file || !name.starts_with("libdp_")) {
        files.push_back(entry);
      }
    }
    return files;
  }
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (error) return files;
  return {program.parent_path() / file, program.parent_path().parent_path() / "lib" / "dp" / file};
}

std::string listed(const std::vector<fs::path>& files) {
  std::string text;
  for (const fs::path& file : files) text += (text.empty() ? "" : ", ") + file.string();
  return text;
}

}  // namespace

const char* abi_hash() { return DP_ABI_HASH; }

PluginFile load_plugin_file(const std::string& file, const char* entry, const std::string& title) {
  const std::vector<fs::path> files = candidates(file);
  for (const fs::path& path : files) {
    std::error_code error;
    if (!fs::exists(path, error)) continue;
    void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return {nullptr, {}, "the " + title + " can not be loaded: " + std::string(dlerror())};
    const auto function = reinterpret_cast<Entry>(dlsym(library, entry));
    if (function == nullptr)
      return {nullptr, {}, path.string() + " is no plugin of dp (it lacks " + std::string(entry) + ")"};
    const char* own_abi = "";
    void* const interface = function(abi_hash(), &own_abi);
    if (interface == nullptr)
      return {nullptr,
              {},
              path.string() + " belongs to another build of dp (its interface is " + own_abi + ", this program's " +
                  abi_hash() + ")"};
    return {interface, path.string(), {}};
  }
  return {
      nullptr, {}, "no " + title + " was found (looked for " + listed(files) + "; DP_PLUGIN_PATH names other places)"};
}

}  // namespace dp::kernels
