// The sources of a tree as text, with what a line-by-line reader needs to know of C++.
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
  std::string path;                // from the root, with '/'
  std::vector<std::string> lines;  // as written
  std::vector<std::string> code;   // without comments and without what stands in string and character literals
  std::vector<Include> includes;

  bool in(const std::string& folder) const { return path.starts_with(folder + "/"); }
};

SourceFile parse_source(std::string path, const std::string& text);

// Every C++, CUDA, CMake and Python file of the project's folders under `root`, in order of path.
std::vector<SourceFile> read_tree(const std::filesystem::path& root);

}  // namespace dp::test
