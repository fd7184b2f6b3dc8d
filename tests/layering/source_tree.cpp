#include "layering/source_tree.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <regex>
#include <sstream>
#include <stdexcept>
#include <string_view>

namespace dp::test {
namespace {

constexpr std::array kFolders{"engine", "kernels", "models", "data", "apps", "tests", "benchmarks"};
constexpr std::array kExtensions{".h", ".cpp", ".cu", ".cuh", ".cmake", ".py", ".txt"};

bool is_cxx(const std::string& path) {
  return path.ends_with(".h") || path.ends_with(".cpp") || path.ends_with(".cu") || path.ends_with(".cuh");
}

// Length of the string, raw string or character literal that starts at `at`; 0 if there is none.
std::size_t literal_length(std::string_view text, std::size_t at) {
  const auto is_word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; };
  const char quote = text[at];
  if (quote != '"' && quote != '\'') return 0;
  if (quote == '\'' && at > 0 && is_word(text[at - 1])) return 1;  // a digit separator
  if (quote == '"' && at > 0 && text[at - 1] == 'R') {
    const std::size_t open = text.find('(', at);
    const std::string close = ")" + std::string(text.substr(at + 1, open - at - 1)) + "\"";
    const std::size_t end = text.find(close, open);
    return (end == std::string_view::npos ? text.size() : end + close.size()) - at;
  }
  std::size_t end = at + 1;
  while (end < text.size() && text[end] != quote && text[end] != '\n') end += text[end] == '\\' ? 2 : 1;
  return std::min(end + 1, text.size()) - at;
}

// Replaces [begin, end) by spaces, except line ends.
void blank(std::string& text, std::size_t begin, std::size_t end) {
  for (std::size_t i = begin; i < std::min(end, text.size()); ++i)
    if (text[i] != '\n') text[i] = ' ';
}

std::string without(const std::string& text, bool literals_too) {
  std::string result = text;
  for (std::size_t i = 0; i < text.size();) {
    if (text.compare(i, 2, "//") == 0) {
      const std::size_t end = std::min(text.find('\n', i), text.size());
      blank(result, i, end);
      i = end;
    } else if (text.compare(i, 2, "/*") == 0) {
      const std::size_t close = text.find("*/", i + 2);
      const std::size_t end = close == std::string::npos ? text.size() : close + 2;
      blank(result, i, end);
      i = end;
    } else if (const std::size_t length = literal_length(text, i); length > 0) {
      if (literals_too) blank(result, i, i + length);
      i += length;
    } else {
      ++i;
    }
  }
  return result;
}

std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

}  // namespace

SourceFile parse_source(std::string path, const std::string& text) {
  static const std::regex include(R"re(^\s*#\s*include\s*([<"])([^>"]+)[>"])re");
  SourceFile file{.path = std::move(path), .lines = split_lines(text), .code = {}, .includes = {}};
  if (!is_cxx(file.path)) return file;
  file.code = split_lines(without(text, true));
  const std::vector<std::string> uncommented = split_lines(without(text, false));
  for (std::size_t i = 0; i < uncommented.size(); ++i) {
    std::smatch match;
    if (std::regex_search(uncommented[i], match, include) && file.code[i].find('#') != std::string::npos)
      file.includes.push_back({static_cast<int>(i) + 1, match[2].str(), match[1].str() == "<"});
  }
  return file;
}

std::vector<SourceFile> read_tree(const std::filesystem::path& root) {
  std::vector<SourceFile> files;
  for (const char* folder : kFolders) {
    if (!std::filesystem::exists(root / folder)) continue;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root / folder)) {
      const std::string extension = entry.path().extension().string();
      if (!entry.is_regular_file() || std::find(kExtensions.begin(), kExtensions.end(), extension) == kExtensions.end())
        continue;
      std::ifstream in(entry.path(), std::ios::binary);
      const std::string text{std::istreambuf_iterator<char>(in), {}};
      if (!in) throw std::runtime_error("cannot read " + entry.path().string());
      files.push_back(parse_source(entry.path().lexically_relative(root).generic_string(), text));
    }
  }
  std::sort(files.begin(), files.end(), [](const auto& a, const auto& b) { return a.path < b.path; });
  return files;
}

}  // namespace dp::test
