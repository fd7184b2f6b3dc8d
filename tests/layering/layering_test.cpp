// The source tree obeys the laws, and each law detects a planted violation.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <regex>
#include <set>
#include <sstream>

#include "layering/laws.h"
#include "support/catch.h"

using dp::test::parse_source;
using dp::test::SourceFile;
using dp::test::Violation;

namespace {

using Law = std::vector<Violation> (*)(const std::vector<SourceFile>&);

// The violations of a law in a small tree, as "file:line" in order.
std::vector<std::string> found(Law law, const std::map<std::string, std::string>& tree) {
  std::vector<SourceFile> files;
  for (const auto& [path, text] : tree) files.push_back(parse_source(path, text));
  std::vector<std::string> where;
  for (const Violation& violation : law(files)) where.push_back(violation.where);
  return where;
}

using Where = std::vector<std::string>;

const std::vector<SourceFile>& tree() {
  static const std::vector<SourceFile> files = dp::test::read_tree(DP_SOURCE_DIR);
  REQUIRE(files.size() > 40);
  return files;
}

void check_tree(Law law) {
  std::string report;
  for (const Violation& violation : law(tree())) report += violation.where + ": " + violation.what + "\n";
  INFO(report);
  CHECK(report.empty());
}

// A planted violation of law 4. Assembled here, so that a text search for such conditionals finds only real ones.
const std::string kDeviceCode = "__CUDA_ARCH__";
std::string conditional(const std::string& macro, const std::string& body = "") {
  return "#ifdef " + macro + "\n" + body + "#endif\n";
}

struct NamedTest {
  std::string title, tags, source;  // source: the name of the file
};

// The macros at the start of a line with a title: TEST_CASE, or one that defines several cases, to whose titles Catch2
// adds a number.
std::vector<NamedTest> named_tests(const std::vector<SourceFile>& files) {
  static const std::regex macro(R"re(([A-Z_]+)\(\s*((?:"(?:[^"\\]|\\.)*"\s*)+)(?:,\s*"([^"]*)")?)re");
  static const std::regex joint(R"re("\s*")re"), start(R"re(^[A-Z_]+\()re");
  std::vector<NamedTest> tests;
  for (const SourceFile& file : files)
    for (std::size_t i = 0; file.in("tests") && i < file.code.size(); ++i) {
      if (!std::regex_search(file.code[i], start)) continue;
      std::string text;
      for (std::size_t k = i; k < std::min(i + 4, file.lines.size()); ++k) text += file.lines[k] + '\n';
      std::smatch match;
      if (!std::regex_search(text, match, macro, std::regex_constants::match_continuous)) continue;
      std::string title = std::regex_replace(match[2].str(), joint, "");
      title = title.substr(1, title.rfind('"') - 1) + (match[1] == "TEST_CASE" ? "" : " - 1");
      tests.push_back({title, match[3], file.path.substr(file.path.rfind('/') + 1)});
    }
  return tests;
}

// The names of the source files of each program, as the calls of dp_add_test list them.
std::map<std::string, std::set<std::string>> program_sources(const std::vector<SourceFile>& files) {
  static const std::regex call(R"re(dp_add_(?:simulated_)?test\((\w+)([^)]*))re");
  std::map<std::string, std::set<std::string>> sources;
  for (const SourceFile& file : files) {
    if (!file.path.ends_with("CMakeLists.txt")) continue;
    std::string text;
    for (const std::string& line : file.lines) text += line + '\n';
    for (std::sregex_iterator it(text.begin(), text.end(), call), end; it != end; ++it) {
      std::istringstream words((*it)[2].str());
      for (std::string word; words >> word;) sources[(*it)[1]].insert(word.substr(word.rfind('/') + 1));
    }
  }
  return sources;
}

// A filter of Catch2: "[tag]", or a title with * at its begin or end.
bool selects(std::string filter, const NamedTest& test) {
  if (filter.starts_with('[')) return test.tags.find(filter) != std::string::npos;
  const bool from_any = filter.starts_with('*'), to_any = filter.ends_with('*');
  if (to_any) filter.pop_back();
  if (from_any && to_any) return test.title.find(filter.substr(1)) != std::string::npos;
  if (from_any) return test.title.ends_with(filter.substr(1));
  return to_any ? test.title.starts_with(filter) : test.title == filter;
}

// The commands in the tables of a page, `test_program "filter,filter"`, with a filter that selects no test of the
// program.
std::vector<std::string> empty_commands(const std::string& page, const std::vector<SourceFile>& files) {
  static const std::regex command(R"re(`(test_[^`]*)`)re"), parts(R"re(test_(\w+) "([^"]+)")re");
  const std::vector<NamedTest> tests = named_tests(files);
  auto sources = program_sources(files);
  const auto selects_some = [&](const std::string& text) {
    std::smatch part;
    if (!std::regex_match(text, part, parts)) return false;
    std::istringstream filters(part[2].str());
    for (std::string filter; std::getline(filters, filter, ',');)
      if (std::none_of(tests.begin(), tests.end(), [&](const NamedTest& test) {
            return selects(filter, test) && sources[part[1]].contains(test.source);
          }))
        return false;
    return true;
  };
  std::vector<std::string> empty;
  std::istringstream lines(page);
  for (std::string line; std::getline(lines, line);)
    for (std::sregex_iterator it(line.begin(), line.end(), command), end; line.starts_with('|') && it != end; ++it)
      if (!selects_some((*it)[1])) empty.push_back((*it)[1]);
  return empty;
}

}  // namespace

TEST_CASE("law 1: public headers include the standard library and each other") {
  check_tree(dp::test::check_floor);
  CHECK(found(dp::test::check_floor, {{"engine/include/dp/a.h", "#include <vector>\n#include \"dp/b.h\"\n"}}).empty());
  CHECK(found(dp::test::check_floor, {{"engine/include/dp/a.h", "#include <vector>\n#include \"kernels/ops.h\"\n"},
                                      {"engine/include/dp/b.h", "// why\n\n#include <fmt/core.h>\n"},
                                      {"engine/include/dp/c.h", "#include <unistd.h>\n"},
                                      {"engine/include/dp/d.cpp", "\n"},
                                      {"engine/include/e.h", "\n"}}) ==
        Where{"engine/include/dp/a.h:2", "engine/include/dp/b.h:3", "engine/include/dp/c.h:1",
              "engine/include/dp/d.cpp", "engine/include/e.h"});
}

TEST_CASE("law 2: models and apps include only public headers") {
  check_tree(dp::test::check_embedder_view);
  CHECK(found(dp::test::check_embedder_view,
              {{"apps/a.cpp",
                "#include <CLI/CLI.hpp>\n#include <curl/curl.h>\n#include <dp/dp.h>\n#include <string>\n"
                "#include \"flags.h\"\n#include <unistd.h>\n"},
               {"apps/flags.h", ""},
               {"apps/x/b.cpp", "#include \"command_line/c.h\"\n"},
               {"apps/command_line/c.h", ""},
               {"models/m.cpp", "#include <dp/models.h>\n"}})
            .empty());
  CHECK(found(dp::test::check_embedder_view, {{"apps/a.cpp", "#include <dp/dp.h>\n#include \"engine/plan.h\"\n"},
                                              {"apps/b.cpp", "#include <nlohmann/json.hpp>\n"},
                                              {"apps/x/c.cpp", "#include \"d.h\"\n#include \"y/d.h\"\n"},
                                              {"apps/y/d.h", ""},
                                              {"models/m.cpp", "#include <CLI/CLI.hpp>\n#include <curl/curl.h>\n"},
                                              {"models/n.cpp", "#include \"dp/model.h\"\n"}}) ==
        Where{"apps/a.cpp:2", "apps/b.cpp:1", "apps/x/c.cpp:1", "apps/x/c.cpp:2", "models/m.cpp:1", "models/m.cpp:2",
              "models/n.cpp:1"});
}

TEST_CASE("law 3: kernels and data include dp, and the engine includes all three") {
  check_tree(dp::test::check_edges);
  CHECK(found(dp::test::check_edges,
              {{"engine/plan/plan.cpp",
                "#include \"engine/plan/plan.h\"\n#include \"kernels/ops.h\"\n#include \"data/x.h\"\n"},
               {"kernels/conv/cuda_gemm.cu", "#include \"device_code.h\"\n#include \"ptx.h\"\n"},
               {"kernels/conv/cpu.cpp", "#include \"kernels/ops.h\"\n#include \"dp/error.h\"\n#include <dnnl.hpp>\n"},
               {"tests/base/t.cpp", "#include \"support/catch.h\"\n"}})
            .empty());
  CHECK(found(dp::test::check_edges, {{"benchmarks/b.cpp", "#include \"data/idx.h\"\n"},
                                      {"data/a.cpp", "#include \"kernels/ops.h\"\n"},
                                      {"engine/a.cpp", "#include \"models/m.h\"\n"},
                                      {"kernels/a.cpp", "#include \"engine/plan.h\"\n"},
                                      {"kernels/b.cpp", "#include <data/a.h>\n"},
                                      {"kernels/conv/b.cpp", "#include \"device_code.h\"\n"},
                                      {"kernels/conv/c.cpp", "#include \"c.h\"\n"}}) ==
        Where{"benchmarks/b.cpp:1", "data/a.cpp:1", "engine/a.cpp:1", "kernels/a.cpp:1", "kernels/b.cpp:1",
              "kernels/conv/b.cpp:1", "kernels/conv/c.cpp:1"});
}

TEST_CASE("law 3: inside the engine each folder includes only folders below it") {
  check_tree(dp::test::check_engine_levels);
  CHECK(found(dp::test::check_engine_levels,
              {{"engine/include/dp/a.h", "#include \"dp/b.h\"\n"},
               {"engine/plan/a.cpp", "#include \"engine/plan/a.h\"\n#include \"engine/base/b.h\"\n"},
               {"engine/train/console/c.cpp", "#include \"engine/parallel/d.h\"\n#include \"engine/train/e.h\"\n"}})
            .empty());
  CHECK(found(dp::test::check_engine_levels, {{"engine/base/a.cpp", "#include \"engine/plan/a.h\"\n"},
                                              {"engine/checkpoint/a.h", "\n#include \"engine/train/a.h\"\n"},
                                              {"engine/observe/a.h", "#include \"engine/step/a.h\"\n"},
                                              {"engine/parallel/a.cpp", "#include \"engine/checkpoint/a.h\"\n"}}) ==
        Where{"engine/base/a.cpp:1", "engine/checkpoint/a.h:2", "engine/observe/a.h:1", "engine/parallel/a.cpp:1"});
  CHECK(found(dp::test::check_engine_levels, {{"engine/flat.cpp", "int x;\n"}, {"engine/other/a.h", "int x;\n"}}) ==
        Where{"engine/flat.cpp", "engine/other/a.h"});
}

TEST_CASE("law 3: includes form no cycle") {
  check_tree(dp::test::check_cycles);
  CHECK(found(dp::test::check_cycles, {{"engine/include/dp/a.h", ""},
                                       {"kernels/b.h", "#include \"dp/a.h\"\n"},
                                       {"kernels/c.h", "#include \"dp/a.h\"\n#include \"kernels/b.h\"\n"}})
            .empty());
  CHECK(found(dp::test::check_cycles, {{"engine/include/dp/a.h", "#include \"dp/b.h\"\n"},
                                       {"engine/include/dp/b.h", "#include <dp/c.h>\n"},
                                       {"engine/include/dp/c.h", "\n#include \"dp/a.h\"\n"}}) ==
        Where{"engine/include/dp/c.h:2"});
  CHECK(found(dp::test::check_cycles,
              {{"apps/a/x.h", "#include \"y.h\"\n"}, {"apps/a/y.h", "#include \"x.h\"\n"}, {"apps/y.h", ""}}) ==
        Where{"apps/a/y.h:1"});
}

TEST_CASE("law 3: a source includes the standard headers of what it names, which unity builds do not check") {
  check_tree(dp::test::check_standard_headers);
  CHECK(
      found(dp::test::check_standard_headers,
            {{"engine/a.cpp", "#include \"engine/a.h\"\nstd::vector<int> v; std::size_t n; std::chrono::seconds s;\n"},
             {"engine/a.h", "#include <dp/b.h>\n#include <thread>\nstd::map<int, int> headers_are_not_checked;\n"},
             {"engine/include/dp/b.h", "#include <vector>\n"}})
          .empty());
  CHECK(found(dp::test::check_standard_headers,
              {{"engine/a.cpp", "#include \"engine/a.h\"\n// std::map\nstd::thread t;\nstd::vector<std::thread> u;\n"},
               {"engine/a.h", "#include <string>\n"},
               {"tests/b.cpp", "#include <vector>\n\nauto n = std::ranges::max(std::vector{1, 2});\n"}}) ==
        Where{"engine/a.cpp:3", "engine/a.cpp:4", "tests/b.cpp:3"});
}

TEST_CASE("law 4: CUDA appears in its own files only and in no #if") {
  check_tree(dp::test::check_cuda);
  CHECK(
      found(dp::test::check_cuda,
            {{"engine/a.cpp", "// cudaMalloc(p) <<<1, 2>>>\nauto k = DeviceKind::cuda; probe(\"cuInit(\", R\"x(" +
                                  conditional("CUDA") +
                                  ")x\");\n"
                                  "#if defined(__linux__)\n#endif\nint cut(int); int n = 1'000'000 << 3;\n"},
             {"tests/cuda/gpus.h", "#pragma once\n"},
             {"tests/cuda/gpus_test.cpp", "#include \"cuda/gpus.h\"\n"},
             {"kernels/pool/cuda.cu", "#include <cuda_runtime.h>\n__global__ void f();\nvoid g() { f<<<1, 2>>>(); }\n"},
             {"kernels/device/cuda/ptx.h", "#if defined(" + kDeviceCode + ")\nasm(\"\");\n#endif\n"},
             {"kernels/comm/nccl/api.cpp", "void f() { ncclCommDestroy(c); }\n"},
             {"tests/host/fake_driver/f.cpp", "int cuInit(unsigned) { return 0; }\n"},
             {"tests/simulated_cuda/t.cpp", "void f() { cudaFree(0); }\n"}})
          .empty());
  CHECK(found(dp::test::check_cuda, {{"engine/a.cpp", "#include <cuda_runtime.h>\n"},
                                     {"engine/b.cpp", "\nvoid f() { cudaFree(nullptr); }\n"},
                                     {"engine/c.h", "__device__ int f();\n"},
                                     {"engine/d.cpp", "void g() { k<<<1, 2>>>(); }\n"},
                                     {"engine/e.cpp", conditional("DP_WITH_CUDA")},
                                     {"kernels/comm.cpp", "#include <nccl.h>\nvoid f() { ncclCommDestroy(c); }\n"},
                                     {"kernels/device/cuda/a_ptx.h", conditional(kDeviceCode, "asm(\"\");\n")},
                                     {"kernels/device/cuda/b_ptx.h", conditional(kDeviceCode, "asm(\"\");\n")},
                                     {"kernels/pool/cpu.cpp", "#include <cuda.h>\n"},
                                     {"kernels/pool/cuda.cu", conditional(kDeviceCode)},
                                     {"tests/host/t.cpp", "int n = cuInit(0);\n"}}) ==
        Where{"engine/a.cpp:1", "engine/b.cpp:2", "engine/c.h:1", "engine/d.cpp:1", "engine/e.cpp:1",
              "kernels/comm.cpp:1", "kernels/comm.cpp:2", "kernels/device/cuda/b_ptx.h:1", "kernels/pool/cpu.cpp:1",
              "kernels/pool/cuda.cu:1", "tests/host/t.cpp:1"});
}

TEST_CASE("law 5: no file is longer than 800 lines") {
  check_tree(dp::test::check_length);
  std::string text;
  for (int i = 0; i < 800; ++i) text += "int x;\n";
  CHECK(found(dp::test::check_length, {{"engine/a.cpp", text}}).empty());
  CHECK(found(dp::test::check_length, {{"engine/a.cpp", text + "\n"}, {"tests/CMakeLists.txt", text + text}}) ==
        Where{"engine/a.cpp", "tests/CMakeLists.txt"});
}

TEST_CASE("law 5: no comment is wider than 120 columns") {
  check_tree(dp::test::check_comments);
  const auto x = [](int count) { return std::string(static_cast<std::size_t>(count), 'x'); };
  std::string mu;  // 117 characters of two bytes
  for (int i = 0; i < 117; ++i) mu += "\u00b5";
  CHECK(found(dp::test::check_comments,
              {{"dev", "echo ${#list[@]} \"# " + x(120) + "\"\n# " + x(118) + "\n"},
               {"engine/a.cpp",
                "// " + x(117) + "\n// " + mu + "\nauto s = \"// " + x(120) + "\";\nint " + x(120) + ";\n"},
               {"engine/b.cpp", "/* why */ int " + x(120) + ";\n"},
               {"tests/CMakeLists.txt", "set(s \"# " + x(120) + "\")\nset(" + x(120) + ")\n"},
               {"tests/a.py", "s = '''\n" + x(121) + "\n# " + x(121) + "'''\nt = '# " + x(120) + "'\n"},
               {"tests/equivalents.txt", x(121) + "\n"}})
            .empty());
  CHECK(found(dp::test::check_comments, {{"dev", "run \"$x\"  # " + x(120) + "\n"},
                                         {"engine/a.cpp", "int a;\n// " + x(118) + "\n"},
                                         {"engine/b.h", "/* why\n" + x(121) + "\n*/\n"},
                                         {"kernels/k.cu", "int " + x(100) + ";  // " + x(20) + "\n"},
                                         {"tests/CMakeLists.txt", "set(s \"it's\")\n# " + x(119) + "\n"},
                                         {"tests/a.py", "def f():\n    \"\"\"" + x(120) + "\n" + x(121) +
                                                            "\n    \"\"\"\n    return '#'  # " + x(110) + "\n"}}) ==
        Where{"dev:1", "engine/a.cpp:2", "engine/b.h:2", "kernels/k.cu:1", "tests/CMakeLists.txt:2", "tests/a.py:2",
              "tests/a.py:3", "tests/a.py:5"});
}

TEST_CASE("law 5: no title of a test begins with a dash or has a semicolon") {
  check_tree(dp::test::check_titles);
  const std::string begin = "TEST_CASE";  // assembled here, so that the check of the tree finds only real ones
  CHECK(found(dp::test::check_titles, {{"tests/a.cpp", begin + "(\"a - b\") {\n}\n"},
                                       {"tests/b.cpp", "\n" + begin + "(\"--flag is read\") {\n}\n"},
                                       {"tests/c.cpp", begin + "(\n    \"-x is read\", \"[tag]\") {\n}\n"},
                                       {"tests/d.cpp", begin + "(\"a; b\") {\n  f();\n}\n"}}) ==
        Where{"tests/b.cpp:2", "tests/c.cpp:1", "tests/d.cpp:1"});
}

TEST_CASE("law 5: only headers of other libraries are precompiled") {
  check_tree(dp::test::check_precompiled);
  CHECK(found(dp::test::check_precompiled, {{"tests/CMakeLists.txt",
                                             "\ntarget_precompile_headers(a PRIVATE ours.h)\n"
                                             "target_precompile_headers(\n  b PRIVATE <catch2/catch.hpp>)\n"
                                             "  target_precompile_headers(c REUSE_FROM b)\n"}}) ==
        Where{"tests/CMakeLists.txt:2"});
}

TEST_CASE("law 5: a class is in at most two sources") {
  check_tree(dp::test::check_classes);
  const std::string call = "void Whole::Part::call(int x) {\n  Other::call(x);\n}\n";
  CHECK(found(dp::test::check_classes, {{"engine/a.cpp", call},
                                        {"engine/b.cpp", call + "void Whole::call() {}\nWhole::Whole() = default;\n"},
                                        {"engine/c.cpp", "void Whole::call() {}\nint x = Whole::Part::count(1);\n"},
                                        {"engine/d.cpp", "  Whole::Part::call(1);\n// Whole::Part::call(1)\n"},
                                        {"kernels/e.cu", call},
                                        {"tests/f.cpp", call}})
            .empty());
  CHECK(found(dp::test::check_classes, {{"engine/a.cpp", call},
                                        {"engine/b.cpp", "Whole::Part::Part() : x_(1) {}\n"},
                                        {"engine/c.cpp", "const std::vector<int>& Whole::Part::of(int) const {\n}\n"},
                                        {"kernels/a.cu", "Held<T>::~Held() {}\n"},
                                        {"kernels/b.cpp", "Held<T>& Held<T>::operator=(Held&&) {\n}\n"},
                                        {"kernels/c.cpp", "[[nodiscard]] int Held<T>::get() {}\n"}}) ==
        Where{"engine/a.cpp", "kernels/a.cu"});
}

TEST_CASE("law 5: a class has at most 30 functions of its own") {
  check_tree(dp::test::check_width);
  const auto klass = [](const std::string& name, const std::string& more, int functions) {
    std::string text = "class " + name + " : public Base {\n public:\n  " + name + "() : a_(1) {}\n";
    for (int i = 1; i < functions; ++i) text += "  int f" + std::to_string(i) + "() const { return g({1}); }\n";
    return text + more + "};\nvoid free();\n";
  };
  const std::string others =
      "  void h() override;\n  using F = void();\n  friend int k(int);\n  int a_ = g(2);\n  std::vector<int> "
      "b_{g(1)};\n"
      "  struct Inner {\n    void i();\n    void j();\n  };\n";
  CHECK(found(dp::test::check_width, {{"engine/a.h", klass("A", others, 30)}}).empty());
  CHECK(
      found(dp::test::check_width, {{"engine/a.h", "\n" + klass("A", others + " private:\n  int l(int x = 1);\n", 30)},
                                    {"engine/b.h", klass("B", "  B& operator=(const B&) = delete;\n", 30)},
                                    {"tests/c.h", klass("C", "", 50)}}) == Where{"engine/a.h:2", "engine/b.h:1"});
}

TEST_CASE("law 5: every command in the tables of failures.md selects tests of its program") {
  std::ifstream in(DP_SOURCE_DIR "/docs/reference/failures.md");
  const std::string page{std::istreambuf_iterator<char>(in), {}};
  CHECK(page.find("| `test_") != std::string::npos);
  CHECK(empty_commands(page, tree()) == std::vector<std::string>{});

  const std::string begin = "TEST_CASE";  // assembled here, as above
  const std::vector<SourceFile> files{
      parse_source("tests/a/CMakeLists.txt",
                   "dp_add_test(a TIER all SOURCES\n  one_test.cpp)\ndp_add_test(b SOURCES ../b/two_test.cpp)\n"),
      parse_source("tests/a/one_test.cpp", begin + "(\"one, two\", \"[.][slow]\") {\n}\n// " + begin +
                                               "(\"no test\")\nIN_PARTS(\"many\") {\n}\n  CHECK(\"no test\");\n"),
      parse_source("tests/b/two_test.cpp", begin + "(\n    \"three \"\n    \"four\") {\n}\n")};
  CHECK(empty_commands(
            "| a | `test_a \"one*\"` | `test` |\n| `test_a \"[slow],*two,many*,*ne*\"`, `test_b \"three four\"` |\n"
            "`test_a \"in no table\"`\n",
            files)
            .empty());
  const std::vector<std::string> bad{"test_a \"one\"",  "test_a \"one*,no test\"", "test_a \"[fast]\"",
                                     "test_a",          "test_b \"one*\"",         "test_c \"one*\"",
                                     "test_a \"many\"", "test_a \"one*\" -s",      "test_a \"*one, t\"",
                                     "test_b \"four*\""};
  std::string table;
  for (const std::string& text : bad) table += "| claim | `test_a \"one*\"`, `" + text + "` | 1 | yes |\n";
  CHECK(empty_commands(table, files) == bad);
}

TEST_CASE("a source tree is read from disk without folders outside the project") {
  const std::filesystem::path root =
      std::filesystem::temp_directory_path() / ("dp_layering_" + std::to_string(std::random_device{}()));
  std::filesystem::create_directories(root / "kernels/conv");
  std::filesystem::create_directories(root / "build/kernels");
  std::ofstream(root / "kernels/conv/a.cpp") << "#include \"engine/plan.h\"\n";
  std::ofstream(root / "build/kernels/b.cpp") << "#include \"engine/plan.h\"\n";
  const std::vector<Violation> violations = dp::test::check_edges(dp::test::read_tree(root));
  std::filesystem::remove_all(root);
  CHECK(violations == std::vector<Violation>{{"kernels/conv/a.cpp:1", "kernels/ may not include engine/plan.h"}});
}
