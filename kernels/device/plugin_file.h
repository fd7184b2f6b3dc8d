// Plugins: libraries of this program that are loaded at run time, because their dependencies may be missing.
#pragma once

#include <string>

namespace dp::kernels {

// Hash of the headers that program and plugins share, and of the compiler (kernels/abi.cmake). A program and a plugin
// are compatible if their hashes are equal.
const char* abi_hash();

struct PluginFile {
  void* interface = nullptr;  // returned by the plugin's entry function
  std::string path, reason;   // reason: why `interface` is null
};
// Finds and loads the plugin `file`. If DP_PLUGIN_PATH is set (absolute folders or files, separated by colons), only
// its entries are searched. Otherwise plugin_folders() are.
// Calls the plugin's `void* entry(const char* abi, const char** own_abi)`, which returns null if the hashes differ.
// `title` names the plugin in messages. Never throws. A loaded library stays loaded.
PluginFile load_plugin_file(const std::string& file, const char* entry, const std::string& title);

}  // namespace dp::kernels
