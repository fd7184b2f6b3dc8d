// What the linker wrote into programs and libraries. They are those of the lists that tests/binaries/CMakeLists.txt
// writes.
#include <stdlib.h>

#include <algorithm>
#include <filesystem>

#include "elf_file.h"
#include "support/catch.h"
#include "support/temporary_folder.h"

namespace {

namespace fs = std::filesystem;
using namespace dp::test;

using Paths = std::vector<std::string>;

bool run(const std::string& command) { return ::system(command.c_str()) == 0; }

// A test's own library has a relative folder in its run path, see tests/host/CMakeLists.txt.
bool is_planted(const std::string& path) { return fs::path(path).filename() == "libplugin_seeker.so"; }

// The paths that exist, of the list.
Paths built(const std::string& list) {
  Paths paths;
  for (const std::string& path : lines_of(read_text(list)))
    if (fs::exists(path) && !is_planted(path)) paths.push_back(path);
  return paths;
}

// An installation of this build, and the programs and libraries in it.
struct Installation {
  Installation() {
    REQUIRE(run(DP_CMAKE " --install '" DP_BUILD "' --prefix '" + folder.path() + "' >/dev/null"));
    for (const auto& entry : fs::recursive_directory_iterator(folder.path()))
      if (entry.is_regular_file() && read_elf(entry.path())) paths.push_back(entry.path());
  }
  TemporaryFolder folder;
  Paths paths;
};

// Programs and libraries that may load a library of the working folder.
Paths loading_from_working_folder(const Paths& paths) {
  Paths found;
  for (const std::string& path : paths) {
    const auto file = read_elf(path);
    REQUIRE(file.has_value());
    for (const std::string& place : relative_places(*file)) found.push_back(path + " searches " + place);
  }
  return found;
}

// What these programs and libraries lack.
Paths unprotected(const Paths& paths) {
  Paths found;
  for (const std::string& path : paths) {
    const auto file = read_elf(path);
    REQUIRE(file.has_value());
    if (!file->relocations_read_only || !file->bind_now) found.push_back(path + " lacks full RELRO");
    if (file->executable_stack) found.push_back(path + " has an executable stack");
    if (!file->position_independent) found.push_back(path + " is not position-independent");
  }
  return found;
}

// Whether there are checks of the stack protector, _FORTIFY_SOURCE and _GLIBCXX_ASSERTIONS: the functions that they
// call on failure.
Paths unchecked(const Paths& paths) {
  Paths found;
  for (const std::string& path : paths) {
    const auto file = read_elf(path);
    REQUIRE(file.has_value());
    const auto imports = [&](const auto& matches) {
      return std::any_of(file->imports.begin(), file->imports.end(), matches);
    };
    if (!imports([](const std::string& name) { return name == "__stack_chk_fail"; }))
      found.push_back(path + " has no stack protector");
    if (DP_FORTIFIED &&
        !imports([](const std::string& name) { return name.starts_with("__") && name.ends_with("_chk"); }))
      found.push_back(path + " has no checks of _FORTIFY_SOURCE");
#if _GLIBCXX_RELEASE >= 12  // an earlier one calls no function of its own
    if (!imports([](const std::string& name) { return name.find("__glibcxx_assert_fail") != std::string::npos; }))
      found.push_back(path + " has no assertions of libstdc++");
#endif
  }
  return found;
}

}  // namespace

TEST_CASE("dp_train and dp_fetch search no relative folder for libraries") {
  const Paths paths = built(DP_PRODUCT_LIST);
  REQUIRE_FALSE(paths.empty());
  CHECK(loading_from_working_folder(paths) == Paths{});
}

TEST_CASE("no program or library of the build searches a relative folder for libraries", "[everything]") {
  const Paths paths = built(DP_EVERYTHING_LIST);
  REQUIRE(paths.size() > 10);
  CHECK(loading_from_working_folder(paths) == Paths{});
}

TEST_CASE("no installed program or library searches a relative folder for libraries", "[everything]") {
  const Installation installation;
  REQUIRE(installation.paths.size() >= 2);
  CHECK(loading_from_working_folder(installation.paths) == Paths{});
}

TEST_CASE("dp_train and dp_fetch are protected against exploits") {
  if (!DP_HARDENED) DP_SKIP("this build has DP_HARDEN=OFF");
  const Paths paths = built(DP_PRODUCT_LIST);
  CHECK(unprotected(paths) == Paths{});
  CHECK(unchecked(paths) == Paths{});
}

TEST_CASE("every program and library, built and installed, is protected against exploits", "[everything]") {
  if (!DP_HARDENED) DP_SKIP("this build has DP_HARDEN=OFF");
  CHECK(unprotected(built(DP_EVERYTHING_LIST)) == Paths{});
  const Installation installation;
  CHECK(unprotected(installation.paths) == Paths{});
  Paths programs;
  for (const std::string& path : installation.paths)
    if (read_elf(path).value_or(ElfFile{}).program &&
        fs::path(path).filename() != "dp_peer_probe")  // too small for all
      programs.push_back(path);
  CHECK(unchecked(programs) == Paths{});
}

TEST_CASE("a library that is planted in the working folder is not loaded") {
  for (const std::string& program : built(DP_PRODUCT_LIST)) {
    const TemporaryFolder folder;
    const auto file = read_elf(program);
    REQUIRE(file.has_value());
    for (const std::string& library : file->needed)
      if (!library.starts_with('/')) write_text(folder / library, "not a library");
    INFO(program);
    CHECK(run("cd '" + folder.path() + "' && '" + program + "' --version >out 2>&1 </dev/null; test $? != 127"));
  }
}

// The names of their candidates. Nothing refers to these files, so a linker could leave them out.
TEST_CASE("the CUDA plugin contains the libraries' kernels, which add themselves to the candidates", "[everything]") {
  const Paths paths = built(DP_EVERYTHING_LIST);
  const auto plugin =
      std::ranges::find_if(paths, [](const std::string& path) { return path.ends_with("/libdp_cuda.so"); });
  if (plugin == paths.end()) DP_SKIP("the CUDA plugin is not built");
  const std::string content = read_text(*plugin);
  CHECK(content.find("cublaslt:") != std::string::npos);
  CHECK(content.find("cudnn:") != std::string::npos);
}
