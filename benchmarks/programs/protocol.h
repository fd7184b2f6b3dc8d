// Output of a measured program to dp_bench: lines of a word and key=value fields, separated by tabs.
#pragma once

#include <fmt/format.h>

#include <iostream>
#include <string>
#include <utility>
#include <vector>

namespace dp::benchmarks {

using Fields = std::vector<std::pair<std::string, std::string>>;

// Prints a line. Control characters in values become spaces: tabs and newlines are separators.
inline void say(const std::string& word, const Fields& fields) {
  std::string line = word;
  for (const auto& [key, value] : fields) {
    line += '\t' + key + '=';
    for (const char c : value) line += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
  }
  std::cout << line << std::endl;
}

inline std::string exact(double value) { return fmt::format("{:.17g}", value); }

}  // namespace dp::benchmarks
