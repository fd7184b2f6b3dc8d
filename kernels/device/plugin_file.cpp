#include "kernels/device/plugin_file.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <vector>

#include "dp/device.h"

namespace dp {
namespace kernels {
namespace {

namespace fs = std::filesystem;

using Entry = void* (*)(const char* abi, const char** own_abi);

// The shared library or program that contains this code: its file, and the absolute folders of its run path, and those
// relative to the file ($ORIGIN). CMake stores the plugin folder in that run path (CMakeLists.txt).
struct Holder {
  fs::path file;
  std::vector<fs::path> run_path;
};

std::vector<fs::path> split(const std::string& list) {
  std::vector<fs::path> entries;
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t end = std::min(list.find(':', begin), list.size());
    if (end > begin) entries.emplace_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return entries;
}

Holder holder_of_this_code(const fs::path& program) {
  Dl_info info{};
  void* extra = nullptr;
  if (dladdr1(reinterpret_cast<const void*>(&holder_of_this_code), &info, &extra, RTLD_DL_LINKMAP) == 0 ||
      extra == nullptr)
    return {program, {}};
  const auto& object = *static_cast<const link_map*>(extra);
  Holder holder{program, {}};
  std::error_code error;
  // The loader's name of a program is empty. One that was relative when it was loaded may be another file now.
  if (object.l_name != nullptr && *object.l_name != '\0')
    holder.file = *object.l_name == '/' ? fs::canonical(object.l_name, error) : fs::path();
  const char* strings = nullptr;
  for (const ElfW(Dyn)* entry = object.l_ld; entry->d_tag != DT_NULL; ++entry)
    if (entry->d_tag == DT_STRTAB)  // an address; some systems leave it relative to the object
      strings =
          reinterpret_cast<const char*>(entry->d_un.d_ptr + (entry->d_un.d_ptr < object.l_addr ? object.l_addr : 0));
  for (const ElfW(Dyn)* entry = object.l_ld; strings != nullptr && entry->d_tag != DT_NULL; ++entry)
    if (entry->d_tag == DT_RUNPATH || entry->d_tag == DT_RPATH)
      for (const fs::path& folder : split(strings + entry->d_un.d_val)) {
        if (folder.is_absolute()) holder.run_path.push_back(folder);
        if (*folder.begin() == "$ORIGIN" && !holder.file.empty())
          holder.run_path.push_back(holder.file.parent_path() / folder.lexically_relative("$ORIGIN"));
      }
  return holder;
}

bool overridden() {
  const char* const named = std::getenv("DP_PLUGIN_PATH");
  return named != nullptr && *named != '\0';
}

// Why DP_PLUGIN_PATH is not searched; empty if it is.
std::string refused() {
  if (overridden())
    for (const fs::path& entry : split(std::getenv("DP_PLUGIN_PATH")))
      if (!entry.is_absolute())
        return "DP_PLUGIN_PATH has " + entry.string() +
               ", which depends on the working folder; set absolute paths in it";
  return {};
}

// Possible paths of the plugin, in search order. A file in DP_PLUGIN_PATH named libdp_* is a candidate only for the
// plugin of that name. A file with any other name is a candidate for every plugin.
std::vector<fs::path> candidates(const std::string& file) {
  std::vector<fs::path> files;
  std::error_code error;
  if (overridden()) {
    for (const fs::path& entry : split(std::getenv("DP_PLUGIN_PATH"))) {
      if (fs::is_directory(entry, error)) {
        files.push_back(entry / file);
      } else if (const auto name = entry.filename().string(); name == file || !name.starts_with("libdp_")) {
        files.push_back(entry);
      }
    }
    return files;
  }
  for (const std::string& folder : plugin_folders()) files.push_back(fs::path(folder) / file);
  return files;
}

std::string listed(const std::vector<fs::path>& files) {
  std::string text;
  for (const fs::path& file : files) text += (text.empty() ? "" : ", ") + file.string();
  return text;
}

}  // namespace

}  // namespace kernels

std::vector<std::string> plugin_folders() {
  namespace fs = std::filesystem;
  std::vector<std::string> folders;
  const auto add = [&](const fs::path& folder) {
    const std::string path = folder.lexically_normal().string();
    if (std::ranges::find(folders, path) == folders.end()) folders.push_back(path);
  };
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  const kernels::Holder holder = kernels::holder_of_this_code(program);
  for (const fs::path& folder : holder.run_path) add(folder);
  for (const fs::path& place : {holder.file, program}) {
    if (place.empty()) continue;
    add(place.parent_path());
    add(place.parent_path().parent_path() / "lib" / "dp");
  }
  return folders;
}

namespace kernels {

const char* abi_hash() { return DP_ABI_HASH; }

PluginFile load_plugin_file(const std::string& file, const char* entry, const std::string& title) {
  if (const std::string reason = refused(); !reason.empty())
    return {nullptr, {}, "no " + title + " is used: " + reason};
  const std::vector<fs::path> files = candidates(file);
  for (const fs::path& path : files) {
    std::error_code error;
    if (!fs::exists(path, error)) continue;
    void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return {nullptr, {}, "the " + title + " cannot be loaded: " + std::string(dlerror())};
    const auto function = reinterpret_cast<Entry>(dlsym(library, entry));
    if (function == nullptr)
      return {nullptr, {}, path.string() + " is not a plugin of dp (it lacks " + std::string(entry) + ")"};
    const char* own_abi = "";
    void* const interface = function(abi_hash(), &own_abi);
    if (interface == nullptr)
      return {nullptr,
              {},
              path.string() + " belongs to another build of dp (its interface is " + own_abi + ", this program's " +
                  abi_hash() + ")"};
    return {interface, path.string(), {}};
  }
  const std::string remedy = overridden() ? "; DP_PLUGIN_PATH is set, so nothing else is searched)"
                                          : "; set DP_PLUGIN_PATH to search other folders)";
  return {nullptr, {}, "no " + title + " was found (looked for " + listed(files) + remedy};
}

}  // namespace kernels
}  // namespace dp
