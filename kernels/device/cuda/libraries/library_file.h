// Shared libraries loaded at run time.
#pragma once

#include <initializer_list>
#include <string>

namespace dp::kernels::cuda {

class LibraryFile {
 public:
  // Loads the library named by the environment variable (kernels/device/plugin.h) if it is set, otherwise the first of
  // `names` that loads. It is never unloaded.
  LibraryFile(const char* variable, std::initializer_list<const char*> names);

  bool found() const { return library_ != nullptr; }
  const std::string& reason() const { return reason_; }  // why it is not found
  const std::string& file() const { return file_; }      // the loaded file
  const char* missing() const { return missing_; }       // the first missing function; null: none

  template <typename Function>
  void find(const char* name, Function& function) {
    function = reinterpret_cast<Function>(address_of(name));
  }

 private:
  void* address_of(const char* name);

  void* library_ = nullptr;
  std::string file_, reason_;
  const char* missing_ = nullptr;
};

}  // namespace dp::kernels::cuda
