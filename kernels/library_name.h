// Libraries and programs that environment variables name.
#pragma once

#include <string>
#include <string_view>

namespace dp::kernels {

// Why the value of an environment variable names no library, or empty. A library is an absolute path, or a name that
// the loader searches. A relative path would load a file of whatever folder the program is started in.
inline std::string relative_library(const std::string& variable, std::string_view value) {
  if (value.starts_with('/') || value.find('/') == std::string_view::npos) return {};
  return variable + " is " + std::string(value) +
         ", a path that depends on the working folder; set an absolute path, or a file name without folders";
}

}  // namespace dp::kernels
