// Shell scripts in place of the programs that dp_bench starts. They answer as benchmarks/README.md describes.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <regex>
#include <string>
#include <vector>

#include "support/temporary_folder.h"

namespace dp::test {

class FakePrograms {
 public:
  FakePrograms() { ::setenv("DP_BENCH_PATH", folder_.path().c_str(), 1); }
  ~FakePrograms() { ::unsetenv("DP_BENCH_PATH"); }
  FakePrograms(const FakePrograms&) = delete;
  FakePrograms& operator=(const FakePrograms&) = delete;

  // The script has $folder and two functions: `say WORD FIELD...` prints a line of the protocol, `log TEXT` appends a
  // line to log().
  void add(const std::string& name, const std::string& script) const {
    write_text(folder_ / name, "#!/bin/sh\nfolder=" + folder_.path() + R"sh(
say() { line=$1; shift; for field in "$@"; do line=$(printf '%s\t%s' "$line" "$field"); done; printf '%s\n' "$line"; }
log() { printf '%s\n' "$*" >> "$folder/log"; }
)sh" + script);
    std::filesystem::permissions(folder_ / name, std::filesystem::perms::owner_all);
  }
  const std::string& path() const { return folder_.path(); }
  // Names of files in memory read FILE, and the folder reads FOLDER.
  std::vector<std::string> log() const {
    std::string text = std::regex_replace(read_text(folder_ / "log"), std::regex("/proc/[0-9]+/fd/[0-9]+"), "FILE");
    return lines_of(std::regex_replace(text, std::regex(folder_.path()), "FOLDER"));
  }

 private:
  const TemporaryFolder folder_;
};

}  // namespace dp::test
