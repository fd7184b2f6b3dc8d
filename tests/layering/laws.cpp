#include "layering/laws.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <functional>
#include <map>
#include <regex>
#include <set>
#include <utility>

namespace dp::test {
namespace {

constexpr std::array kOurFolders{"dp/", "engine/", "kernels/", "data/", "models/", "apps/", "benchmarks/"};
constexpr int kMaxLines = 800;
constexpr std::size_t kMaxColumns = 120;

using Folders = std::vector<std::string>;

bool starts_with_any(const std::string& text, const Folders& prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(), [&](const std::string& p) { return text.starts_with(p); });
}

bool is_standard(const Include& include) {
  return include.angle && include.path.find_first_of("./") == std::string::npos;
}

// A header of this project: quoted, or in angle brackets with the name of a project folder.
bool is_ours(const Include& include) {
  return !include.angle || starts_with_any(include.path, Folders(kOurFolders.begin(), kOurFolders.end()));
}

Violation at(const SourceFile& file, int line, const std::string& what) {
  return {file.path + ":" + std::to_string(line), what};
}

bool is_public(const SourceFile& file) { return file.in("engine/include"); }
bool is_cuda_kernel_file(const SourceFile& file) {
  return file.in("kernels/device/cuda") || file.in("kernels/comm/p2p") || file.in("kernels/comm/nccl") ||
         file.in("kernels/tuning") ||
         (file.in("kernels") && file.path.substr(file.path.rfind('/') + 1).starts_with("cuda"));
}
// The fake driver defines the same functions as a real driver and calls none. The toy layer's .cu file is compiled in
// kernels/ of a copy of the tree.
bool may_name_cuda(const SourceFile& file) {
  return is_cuda_kernel_file(file) || file.in("tests/simulated_cuda") || file.in("tests/host/fake_driver") ||
         file.in("tests/contributing/softsign");
}

}  // namespace

std::vector<Violation> check_floor(const std::vector<SourceFile>& files) {
  std::vector<Violation> found;
  for (const SourceFile& file : files) {
    if (!is_public(file)) continue;
    if (!file.in("engine/include/dp") || !file.path.ends_with(".h"))
      found.push_back({file.path, "only engine/include/dp/*.h is public"});
    for (const Include& include : file.includes)
      if (!is_standard(include) && !include.path.starts_with("dp/"))
        found.push_back(at(file, include.line, "a public header includes " + include.path));
  }
  return found;
}

std::vector<Violation> check_embedder_view(const std::vector<SourceFile>& files) {
  const Folders posix{"unistd.h", "fcntl.h", "signal.h", "poll.h", "pthread.h", "cxxabi.h", "termios.h", "sys/"};
  // Libraries of the programs, which an embedder does not need.
  const Folders libraries{"CLI/",          "toml++/",   "curl/",    "archive.h", "archive_entry.h",
                          "openssl/evp.h", "elfutils/", "nanobind/"};
  std::vector<Violation> found;
  for (const SourceFile& file : files) {
    const bool app = file.in("apps");
    if (!app && !file.in("models")) continue;
    const std::string folder = file.path.substr(0, file.path.rfind('/') + 1);
    const auto is_own = [&](const Include& include) {
      return !include.angle && std::any_of(files.begin(), files.end(), [&](const SourceFile& other) {
        // Both programs use apps/command_line.
        return other.path == folder + include.path ||
               (app && include.path.starts_with("command_line/") && other.path == "apps/" + include.path);
      });
    };
    for (const Include& include : file.includes) {
      const bool allowed =
          is_standard(include) || is_own(include) || (include.angle && include.path.starts_with("dp/")) ||
          (app && include.angle && (starts_with_any(include.path, libraries) || starts_with_any(include.path, posix)));
      if (!allowed) found.push_back(at(file, include.line, "an embedder could not include " + include.path));
    }
  }
  return found;
}

std::vector<Violation> check_edges(const std::vector<SourceFile>& files) {
  const std::map<std::string, Folders> stands_on{{"kernels", {"dp/", "kernels/"}},
                                                 {"data", {"dp/", "data/"}},
                                                 {"engine", {"dp/", "kernels/", "data/", "engine/"}},
                                                 {"benchmarks", {"dp/", "kernels/", "engine/", "benchmarks/"}}};
  std::vector<Violation> found;
  for (const SourceFile& file : files) {
    const auto rule = stands_on.find(file.path.substr(0, file.path.find('/')));
    if (rule == stands_on.end() || is_public(file)) continue;
    // device_code.h and ptx.h have replacements in tests/simulated_cuda; the include path selects one.
    const auto is_twin = [&](const Include& include) {
      return is_cuda_kernel_file(file) && !include.angle &&
             (include.path == "device_code.h" || include.path == "ptx.h");
    };
    for (const Include& include : file.includes)
      if (is_ours(include) && !is_twin(include) && !starts_with_any(include.path, rule->second))
        found.push_back(at(file, include.line, rule->first + "/ may not include " + include.path));
  }
  return found;
}

std::vector<Violation> check_engine_levels(const std::vector<SourceFile>& files) {
  const std::string engine = "engine/";
  const std::map<std::string, Folders> stands_on{
      {"base", {}},
      {"layers", {"base"}},
      {"plan", {"base", "layers"}},
      {"observe", {"base"}},
      {"optimizer", {"base", "layers", "plan"}},
      {"checkpoint", {"base"}},
      {"onnx", {"base", "checkpoint"}},
      {"process_group", {"base"}},
      {"step", {"base", "layers", "plan", "observe", "optimizer", "process_group"}},
      {"state", {"base", "layers", "plan", "observe", "optimizer", "process_group", "step"}},
      {"parallel", {"base", "layers", "plan", "observe", "optimizer", "process_group", "step", "state"}},
      {"train",
       {"base", "layers", "plan", "observe", "optimizer", "checkpoint", "process_group", "step", "state", "parallel"}}};
  const auto folder_of = [&](const std::string& path) {
    const std::size_t end = path.find('/', engine.size());
    return end == std::string::npos ? std::string() : path.substr(engine.size(), end - engine.size());
  };
  std::vector<Violation> found;
  for (const SourceFile& file : files) {
    if (!file.in("engine") || is_public(file)) continue;
    const std::string folder = folder_of(file.path);
    const auto rule = stands_on.find(folder);
    if (rule == stands_on.end()) {
      if (!file.code.empty()) found.push_back({file.path, "the law of levels has no folder engine/" + folder});
      continue;
    }
    for (const Include& include : file.includes) {
      if (!include.path.starts_with(engine)) continue;
      const std::string other = folder_of(include.path);
      const Folders& allowed = rule->second;
      if (other != folder && std::find(allowed.begin(), allowed.end(), other) == allowed.end())
        found.push_back(at(file, include.line, engine + folder + " may not include " + include.path));
    }
  }
  return found;
}

namespace {

// Finds the files that includes name.
class Resolver {
 public:
  explicit Resolver(const std::vector<SourceFile>& files) {
    for (const SourceFile& file : files) by_path_[file.path] = &file;
  }
  // Null: not a file of the project.
  const SourceFile* operator()(const SourceFile& from, const Include& include) const {
    const std::string folder = from.path.substr(0, from.path.rfind('/') + 1);
    for (const char* root : {folder.c_str(), "", "engine/include/", "tests/", "apps/"})
      if (const auto it = by_path_.find(root + include.path); it != by_path_.end()) return it->second;
    return nullptr;
  }

 private:
  std::map<std::string, const SourceFile*> by_path_;
};

// A standard header, other headers that declare the same names, and the names.
struct StandardHeader {
  const char* name;
  std::set<std::string> others;
  std::set<std::string> names;
};

const std::vector<StandardHeader>& standard_headers() {
  static const std::vector<StandardHeader> headers{
      {"algorithm",
       {"ranges"},
       {"all_of", "any_of", "clamp", "copy_n", "count_if", "find", "find_if", "max_element", "minmax", "none_of",
        "nth_element", "ranges", "reverse", "shuffle", "sort", "stable_sort", "transform", "unique"}},
      {"array", {}, {"array"}},
      {"atomic", {}, {"atomic", "atomic_ref"}},
      {"charconv", {}, {"from_chars", "to_chars"}},
      {"chrono", {"condition_variable", "future", "mutex", "thread"}, {"chrono"}},
      {"cmath", {}, {"exp", "isfinite", "isnan", "log", "lround", "pow", "sqrt"}},
      {"condition_variable", {}, {"condition_variable"}},
      {"cstdio", {}, {"fflush", "fprintf", "fputs", "printf", "snprintf"}},
      {"cstdlib", {}, {"getenv", "strtol"}},
      {"cstring", {}, {"memcmp", "memcpy", "memmove", "memset", "strcmp", "strerror", "strlen"}},
      {"deque", {}, {"deque"}},
      {"filesystem", {}, {"filesystem"}},
      {"fstream", {}, {"ifstream", "ofstream"}},
      {"functional", {}, {"function"}},
      {"future", {}, {"async", "future", "promise"}},
      {"limits", {}, {"numeric_limits"}},
      {"list", {}, {"list"}},
      {"map", {}, {"map", "multimap"}},
      {"memory", {}, {"make_shared", "make_unique", "shared_ptr", "unique_ptr", "weak_ptr"}},
      {"mutex", {"condition_variable", "future"}, {"lock_guard", "mutex", "scoped_lock", "unique_lock"}},
      {"numeric", {}, {"accumulate", "iota"}},
      {"optional", {}, {"nullopt", "optional"}},
      {"regex", {}, {"regex", "smatch"}},
      {"set", {}, {"multiset", "set"}},
      {"span", {}, {"span"}},
      {"sstream", {}, {"istringstream", "ostringstream", "stringstream"}},
      {"stdexcept", {}, {"logic_error", "out_of_range", "runtime_error"}},
      {"string", {"filesystem", "fstream", "regex", "sstream", "stdexcept", "system_error"}, {"string", "to_string"}},
      {"thread", {}, {"jthread", "this_thread", "thread"}},
      {"tuple", {}, {"tie", "tuple"}},
      {"unordered_map", {}, {"unordered_map"}},
      {"utility", {}, {"exchange"}},
      {"variant", {}, {"monostate", "variant", "visit"}},
      {"vector", {}, {"vector"}}};
  return headers;
}

// Calls visit(name) for every std::name of the line.
template <typename Visit>
void for_standard_names(const std::string& line, const Visit& visit) {
  const std::string prefix = "std::";
  for (std::size_t at = line.find(prefix); at != std::string::npos; at = line.find(prefix, at)) {
    at += prefix.size();
    std::size_t end = at;
    while (end < line.size() && (std::isalnum(static_cast<unsigned char>(line[end])) != 0 || line[end] == '_')) ++end;
    visit(line.substr(at, end - at));
  }
}

}  // namespace

std::vector<Violation> check_standard_headers(const std::vector<SourceFile>& files) {
  std::map<std::string, const StandardHeader*> header_of;
  for (const StandardHeader& header : standard_headers())
    for (const std::string& name : header.names) header_of[name] = &header;
  const Resolver resolve(files);
  std::vector<Violation> found;
  for (const SourceFile& file : files) {
    if (!file.path.ends_with(".cpp")) continue;
    std::set<const SourceFile*> read;
    std::set<std::string> included, reported;
    const std::function<void(const SourceFile&)> collect = [&](const SourceFile& one) {
      if (!read.insert(&one).second) return;
      for (const Include& include : one.includes) {
        if (const SourceFile* const next = resolve(one, include))
          collect(*next);
        else
          included.insert(include.path);
      }
    };
    collect(file);
    for (std::size_t i = 0; i < file.code.size(); ++i)
      for_standard_names(file.code[i], [&](const std::string& name) {
        const auto it = header_of.find(name);
        if (it == header_of.end() || included.contains(it->second->name)) return;
        const auto is_included = [&](const std::string& other) { return included.contains(other); };
        if (std::ranges::any_of(it->second->others, is_included) || !reported.insert(it->second->name).second) return;
        found.push_back(
            at(file, static_cast<int>(i) + 1, "names std::" + name + " without <" + it->second->name + ">"));
      });
  }
  return found;
}

std::vector<Violation> check_cycles(const std::vector<SourceFile>& files) {
  const Resolver resolve(files);
  enum class Mark { fresh, open, done };
  std::map<const SourceFile*, Mark> marks;
  std::vector<Violation> found;
  const std::function<void(const SourceFile&)> visit = [&](const SourceFile& file) {
    marks[&file] = Mark::open;
    for (const Include& include : file.includes) {
      const SourceFile* next = resolve(file, include);
      if (next == nullptr || marks[next] == Mark::done) continue;
      if (marks[next] == Mark::open)
        found.push_back(at(file, include.line, "closes a cycle of includes with " + include.path));
      else
        visit(*next);
    }
    marks[&file] = Mark::done;
  };
  for (const SourceFile& file : files)
    if (marks[&file] == Mark::fresh) visit(file);
  return found;
}

std::vector<Violation> check_cuda(const std::vector<SourceFile>& files) {
  static const std::regex header(
      R"re(^(cuda|cublas|cudnn|curand|cufft|nccl|nvrtc|nvml|nvtx|cooperative_groups|cub/|thrust/).*)re");
  static const std::regex name(
      R"re(\b(cu|cuda|cublas|cublasLt|cudnn|nccl|nvrtc|nvml)[A-Z]\w*\s*\(|<<<|\b__(global|device|host|shared|constant)__\b|\b__syncthreads\b)re");
  static const std::regex condition(R"re(^\s*#\s*(if|ifdef|ifndef|elif).*(CUDA|NVCC|cuda|nvcc))re");
  static const std::regex inline_ptx(R"re(\basm\b)re");
  std::vector<Violation> found;
  int ptx_headers = 0;
  const auto is_test_header = [&](const Include& include) {
    return !include.angle && std::any_of(files.begin(), files.end(), [&](const SourceFile& other) {
      return other.path == "tests/" + include.path;
    });
  };
  for (const SourceFile& file : files) {
    const bool allowed = may_name_cuda(file);
    const auto matches = [&](const std::regex& what) {
      std::vector<int> lines;
      for (std::size_t i = 0; i < file.code.size(); ++i)
        if (std::regex_search(file.code[i], what)) lines.push_back(static_cast<int>(i) + 1);
      return lines;
    };
    if (!allowed) {
      for (const Include& include : file.includes)
        if (std::regex_match(include.path, header) && !is_test_header(include))
          found.push_back(at(file, include.line, "includes " + include.path));
      for (const int line : matches(name))
        found.push_back(at(file, line, "names CUDA outside the CUDA files of kernels/"));
    }
    const std::vector<int> conditions = matches(condition);
    if (conditions.empty()) continue;
    const bool holds_ptx = allowed && file.path.ends_with(".h") && !matches(inline_ptx).empty();
    if (!holds_ptx || ++ptx_headers > 1)
      for (const int line : conditions) found.push_back(at(file, line, "asks for CUDA in an #if; CMake chooses files"));
  }
  return found;
}

std::vector<Violation> check_length(const std::vector<SourceFile>& files) {
  std::vector<Violation> found;
  for (const SourceFile& file : files)
    if (file.lines.size() > kMaxLines)
      found.push_back({file.path, std::to_string(file.lines.size()) + " lines; one of more than " +
                                      std::to_string(kMaxLines) + " is two concepts"});
  return found;
}

std::vector<Violation> check_comments(const std::vector<SourceFile>& files) {
  std::vector<Violation> found;
  for (const SourceFile& file : files)
    for (std::size_t i = 0; i < file.comment_ends.size(); ++i)
      if (file.comment_ends[i] > kMaxColumns)
        found.push_back(at(file, static_cast<int>(i) + 1,
                           "a comment of " + std::to_string(file.comment_ends[i]) + " columns; wrap it at " +
                               std::to_string(kMaxColumns)));
  return found;
}

std::vector<Violation> check_titles(const std::vector<SourceFile>& files) {
  std::vector<Violation> found;
  for (const SourceFile& file : files)
    for (std::size_t i = 0; i < file.lines.size(); ++i) {
      if (i >= file.code.size() || !file.code[i].starts_with("TEST_CASE(")) continue;
      const std::string& line = file.lines[i];
      const std::string text = line == "TEST_CASE(" && i + 1 < file.lines.size() ? file.lines[i + 1] : line.substr(10);
      const std::size_t quote = text.find('"');
      if (quote == std::string::npos) continue;
      const std::string title = text.substr(quote + 1, text.find('"', quote + 1) - quote - 1);
      if (title.starts_with('-'))
        found.push_back(at(file, static_cast<int>(i) + 1, "the title begins with a dash; begin with a word"));
      if (title.find(';') != std::string::npos)
        found.push_back(at(file, static_cast<int>(i) + 1, "the title has a semicolon; write a comma or a word"));
    }
  return found;
}

std::vector<Violation> check_precompiled(const std::vector<SourceFile>& files) {
  static const std::regex call(
      R"(target_precompile_headers\(\s*\S+\s+(?:REUSE_FROM|(?:PRIVATE|PUBLIC|INTERFACE)\s+<))");
  std::vector<Violation> found;
  for (const SourceFile& file : files) {
    if (!file.path.ends_with("CMakeLists.txt") && !file.path.ends_with(".cmake")) continue;
    std::string text;
    for (const std::string& line : file.lines) text += line + '\n';
    for (std::size_t i = 0; (i = text.find("target_precompile_headers(", i)) != std::string::npos; ++i)
      if (!std::regex_search(text.begin() + static_cast<std::ptrdiff_t>(i), text.end(), call,
                             std::regex_constants::match_continuous))
        found.push_back(at(
            file, 1 + static_cast<int>(std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(i), '\n')),
            "precompiles a header of ours; precompile <library/header> only"));
  }
  return found;
}

std::vector<Violation> check_classes(const std::vector<SourceFile>& files) {
  // "void Outer::Inner::call(", "Type::Type(" at the start of a line. Types begin with a capital letter.
  static const std::regex definition(
      R"(^(?=[A-Za-z\[])(?:[^()=;]*[ &*])?((?:[A-Z]\w*(?:<\w+>)?::)+)(?:~?\w+|operator[^ (]*)\()");
  std::map<std::string, std::set<std::string>> sources;  // "engine Outer::Inner::": files
  for (const SourceFile& file : files) {
    if (file.in("tests") || !(file.path.ends_with(".cpp") || file.path.ends_with(".cu"))) continue;
    for (const std::string& line : file.code)
      if (std::smatch match; std::regex_search(line, match, definition))
        sources[file.path.substr(0, file.path.find('/')) + " " + match[1].str()].insert(file.path);
  }
  std::vector<Violation> found;
  for (const auto& [name, paths] : sources)
    if (paths.size() > 2)
      found.push_back({*paths.begin(), name.substr(name.find(' ') + 1, name.size() - name.find(' ') - 3) +
                                           " is defined in " + std::to_string(paths.size()) +
                                           " sources; a class may be in two"});
  return found;
}

namespace {

// Reads the body of a class, from behind its brace. Returns how many functions it declares.
int functions_in(std::string_view body) {
  int functions = 0, depth = 1;
  std::string declaration;
  const auto ends = [&] {
    const std::string text = std::exchange(declaration, {});
    const std::size_t bracket = text.find('('), assigned = text.find('=');
    const bool other = text.find("override") != std::string::npos || text.find("friend ") != std::string::npos ||
                       text.find("static_assert") != std::string::npos || text.find("using ") != std::string::npos;
    const bool is_operator = text.find("operator") != std::string::npos;
    functions += bracket != std::string::npos && (is_operator || assigned > bracket) && !other;
  };
  for (const char c : body) {
    if (c == '}' && --depth == 0) break;
    if (c == '}' && depth == 1 && declaration.find('(') != std::string::npos) ends();
    if (c == '{') ++depth;
    if (depth != 1 || c == '}') continue;
    if (c == ';')
      ends();
    else if (c == ':' && (declaration.ends_with("public") || declaration.ends_with("private")))
      declaration.clear();
    else
      declaration += c == '\n' ? ' ' : c;
  }
  return functions;
}

}  // namespace

std::vector<Violation> check_width(const std::vector<SourceFile>& files) {
  constexpr int kMostFunctions = 30;
  static const std::regex head(R"(\b(?:class|struct)\s+([\w:]+)(?:\s+final)?(?:\s*:[^;{()]*)?\s*\{)");
  std::vector<Violation> found;
  for (const SourceFile& file : files) {
    if (file.in("tests") || file.path.find("/cmake") != std::string::npos) continue;
    std::string text;
    for (const std::string& line : file.code) text += line + "\n";
    for (std::sregex_iterator it(text.begin(), text.end(), head), end; it != end; ++it) {
      const int functions =
          functions_in(std::string_view(text).substr(static_cast<std::size_t>(it->position() + it->length())));
      if (functions <= kMostFunctions || (*it)[1] == "DataParallel") continue;
      const auto line = std::count(text.begin(), text.begin() + it->position(), '\n') + 1;
      found.push_back(at(file, static_cast<int>(line),
                         (*it)[1].str() + " has " + std::to_string(functions) +
                             " functions of its own; a class may have " + std::to_string(kMostFunctions)));
    }
  }
  return found;
}

}  // namespace dp::test
