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
constexpr std::array kRootFiles{"CMakeLists.txt", "dev"};
constexpr std::array kExtensions{".h", ".cpp", ".cu", ".cuh", ".cmake", ".py", ".sh", ".txt"};

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

// Columns of UTF-8 text.
std::size_t columns(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

// For C++: `uncommented` has spaces in place of comments.
std::vector<std::size_t> slash_comment_ends(const std::vector<std::string>& lines,
                                            const std::vector<std::string>& uncommented) {
  std::vector<std::size_t> ends;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    std::size_t end = lines[i].size();
    while (end > 0 && lines[i][end - 1] == uncommented[i][end - 1]) --end;
    ends.push_back(columns(std::string_view(lines[i]).substr(0, end)));
  }
  return ends;
}

// For Python, CMake and shell. A comment's # is first in its line or follows a space. Strings end with their line,
// except Python's triple-quoted ones. Of these, docstrings are the ones that begin their line.
std::vector<std::size_t> hash_comment_ends(const std::string& path, const std::vector<std::string>& lines) {
  const bool python = path.ends_with(".py");
  const bool cmake = path.ends_with(".cmake") || path.ends_with("CMakeLists.txt");
  const std::string_view quotes = cmake ? "\"" : "\"'";
  std::vector<std::size_t> ends;
  std::string triple;  // the quotes of the open triple-quoted string
  bool docstring = false;
  for (const std::string& line : lines) {
    std::size_t end = 0;
    for (std::size_t i = 0; i < line.size();) {
      if (!triple.empty()) {
        const std::size_t close = line.find(triple, i);
        i = close == std::string::npos ? line.size() : close + triple.size();
        if (docstring) end = i;
        if (close != std::string::npos) triple.clear();
      } else if (python && (line.compare(i, 3, "\"\"\"") == 0 || line.compare(i, 3, "'''") == 0)) {
        triple = line.substr(i, 3);
        docstring = line.find_first_not_of(' ') == i;
        i += triple.size();
      } else if (quotes.find(line[i]) != std::string_view::npos) {
        const char quote = line[i++];
        while (i < line.size() && line[i] != quote) i += line[i] == '\\' ? 2 : 1;
        ++i;
      } else if (line[i] == '#' && (i == 0 || line[i - 1] == ' ')) {
        end = i = line.size();
      } else {
        ++i;
      }
    }
    ends.push_back(columns(std::string_view(line).substr(0, end)));
  }
  return ends;
}

}  // namespace

SourceFile parse_source(std::string path, const std::string& text) {
  static const std::regex include(R"re(^\s*#\s*include\s*([<"])([^>"]+)[>"])re");
  SourceFile file{.path = std::move(path), .lines = split_lines(text), .code = {}, .includes = {}, .comment_ends = {}};
  if (!is_cxx(file.path)) {
    file.comment_ends = hash_comment_ends(file.path, file.lines);
    return file;
  }
  file.code = split_lines(without(text, true));
  const std::vector<std::string> uncommented = split_lines(without(text, false));
  file.comment_ends = slash_comment_ends(file.lines, uncommented);
  for (std::size_t i = 0; i < uncommented.size(); ++i) {
    std::smatch match;
    if (std::regex_search(uncommented[i], match, include) && file.code[i].find('#') != std::string::npos)
      file.includes.push_back({static_cast<int>(i) + 1, match[2].str(), match[1].str() == "<"});
  }
  return file;
}

std::vector<SourceFile> read_tree(const std::filesystem::path& root) {
  std::vector<SourceFile> files;
  const auto add = [&](const std::filesystem::path& path) {
    std::ifstream in(path, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    if (!in) throw std::runtime_error("cannot read " + path.string());
    files.push_back(parse_source(path.lexically_relative(root).generic_string(), text));
  };
  for (const char* file : kRootFiles)
    if (std::filesystem::exists(root / file)) add(root / file);
  for (const char* folder : kFolders) {
    if (!std::filesystem::exists(root / folder)) continue;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root / folder)) {
      const std::string extension = entry.path().extension().string();
      if (!entry.is_regular_file() || std::find(kExtensions.begin(), kExtensions.end(), extension) == kExtensions.end())
        continue;
      add(entry.path());
    }
  }
  std::sort(files.begin(), files.end(), [](const auto& a, const auto& b) { return a.path < b.path; });
  return files;
}

}  // namespace dp::test
