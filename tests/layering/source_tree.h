// The sources of a tree as text, prepared for checks by line.
#pragma once

#include <cstddef>
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
  std::vector<std::size_t> comment_ends;  // per line: the last column of a comment (Python: or docstring); 0: none

  bool in(const std::string& folder) const { return path.starts_with(folder + "/"); }
};

SourceFile parse_source(std::string path, const std::string& text);

// Every C++, CUDA, CMake, Python and shell file of the project under `root`, sorted by path.
std::vector<SourceFile> read_tree(const std::filesystem::path& root);

}  // namespace dp::test
