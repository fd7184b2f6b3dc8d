// Shared libraries loaded at run time.
#pragma once

#include <initializer_list>
#include <string>

namespace dp::kernels::cuda {

class LibraryFile {
 public:
  // Loads the file named by the environment variable if it is set, otherwise the first of `names` that loads. The
  // library is never unloaded.
  LibraryFile(const char* variable, std::initializer_list<const char*> names);

  bool found() const { return library_ != nullptr; }
  const std::string& file() const { return file_; }  // the loaded file, or the files that were tried
  const char* missing() const { return missing_; }   // the first missing function; null: none

  template <typename Function>
  void find(const char* name, Function& function) {
    function = reinterpret_cast<Function>(address_of(name));
  }

 private:
  void* address_of(const char* name);

  void* library_ = nullptr;
  std::string file_;
  const char* missing_ = nullptr;
};

}  // namespace dp::kernels::cuda
