// Libraries that are part of this program but loaded at run time, because what they stand on may not be there.
#pragma once

#include <string>

namespace dp::kernels {

// Of the headers that program and plugin share, and of the compiler (kernels/abi.cmake): equal when both can talk to each other.
const char* abi_hash();

struct PluginFile {
  void* interface = nullptr;  // what its entry gave
  std::string path, reason;   // reason: why there is no interface
};
// Looks for `file` in the folders or files of DP_PLUGIN_PATH (separated by colons) and, where that is set, nowhere else. Otherwise in the
// absolute folders of the run path of the program or shared library that holds this code, then beside that and in its ../lib/dp, then
// beside the program and in its ../lib/dp. Calls its `void* entry(const char* abi, const char** own_abi)`, which gives null to another
// build. `title` is how a person calls it. Never throws; what is loaded stays loaded.
PluginFile load_plugin_file(const std::string& file, const char* entry, const std::string& title);

}  // namespace dp::kernels
