// The sources of a tree as text, prepared for checks by line.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace dp::test {

struct Include {
  int line = 0;
  std::string path;
  bool angle = false;  // <path>, not "path"
};

struct SourceFile {
  std::string path;                // relative to the root, with '/'
  std::vector<std::string> lines;  // verbatim
  std::vector<std::string> code;   // without comments and the content of string and character literals
  std::vector<Include> includes;

  bool in(const std::string& folder) const { return path.starts_with(folder + "/"); }
};

SourceFile parse_source(std::string path, const std::string& text);

// Every C++, CUDA, CMake and Python file of the project's folders under `root`, sorted by path.
std::vector<SourceFile> read_tree(const std::filesystem::path& root);

}  // namespace dp::test
