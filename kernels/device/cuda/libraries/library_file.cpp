#include "kernels/device/cuda/libraries/library_file.h"

#include <dlfcn.h>

#include <cstdlib>

#include "kernels/device/plugin.h"

namespace dp::kernels::cuda {

LibraryFile::LibraryFile(const char* variable, std::initializer_list<const char*> names) {
  const char* const named = std::getenv(variable);
  std::string tried;
  const auto open = [&](const char* file) {
    tried += (tried.empty() ? "" : ", ") + std::string(file);
    library_ = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (library_ != nullptr) file_ = file;
  };
  if (named != nullptr && *named != '\0') {
    reason_ = relative_library(variable, named);
    if (reason_.empty()) open(named);
  } else {
    for (const char* const name : names)
      if (library_ == nullptr) open(name);
  }
  if (library_ == nullptr && reason_.empty()) reason_ = tried + " was not found";
}

void* LibraryFile::address_of(const char* name) {
  void* const address = dlsym(library_, name);
  if (address == nullptr && missing_ == nullptr) missing_ = name;
  return address;
}

}  // namespace dp::kernels::cuda
