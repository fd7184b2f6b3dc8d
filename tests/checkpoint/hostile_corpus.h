// Malformed safetensors files that the reader must refuse.
#pragma once

#include <string>
#include <vector>

namespace dp::test {

struct BadFile {
  std::string what, bytes;
  std::string message;  // part of the error's text
};
std::vector<BadFile> hostile_safetensors();

}  // namespace dp::test
