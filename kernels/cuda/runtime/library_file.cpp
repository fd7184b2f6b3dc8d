#include "kernels/cuda/runtime/library_file.h"

#include <dlfcn.h>

#include <cstdlib>

namespace dp::kernels::cuda {

LibraryFile::LibraryFile(const char* variable, std::initializer_list<const char*> names) {
  const char* const named = std::getenv(variable);
  const auto open = [&](const char* file) {
    file_ += (file_.empty() ? "" : ", ") + std::string(file);
    library_ = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (library_ != nullptr) file_ = file;
  };
  if (named != nullptr && *named != '\0')
    open(named);
  else
    for (const char* const name : names)
      if (library_ == nullptr) open(name);
}

void* LibraryFile::address_of(const char* name) {
  void* const address = dlsym(library_, name);
  if (address == nullptr && missing_ == nullptr) missing_ = name;
  return address;
}

}  // namespace dp::kernels::cuda
