// The encoded images of tests/fuzz/image_corpus, made by golden/make_images.py.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace dp::test {

inline std::vector<std::uint8_t> corpus_image(const std::string& name) {
  std::ifstream file(std::string(DP_IMAGE_CORPUS "/") + name, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline std::vector<std::string> corpus_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(DP_IMAGE_CORPUS))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace dp::test
