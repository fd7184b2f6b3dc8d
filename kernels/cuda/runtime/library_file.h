// Libraries that are looked for at run time.
#pragma once

#include <initializer_list>
#include <string>

namespace dp::kernels::cuda {

class LibraryFile {
 public:
  // The file that this environment variable names, where it is set, or else the first of `names` that there is. It stays loaded.
  LibraryFile(const char* variable, std::initializer_list<const char*> names);

  bool found() const { return library_ != nullptr; }
  const std::string& file() const { return file_; }  // that was found, or looked for
  const char* missing() const { return missing_; }   // the first function that was not found; null: none

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
