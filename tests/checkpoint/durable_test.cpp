// Creation of new files and their temporary names.
#include "engine/base/durable.h"

#include <unistd.h>

#include "checkpoint/files_support.h"
#include "checkpoint/scoped_file_ops.h"
#include "support/catch.h"

using namespace dp::test;
namespace fs = std::filesystem;

namespace {

// A file system whose writes return 0 bytes without an error.
class StuckOps final : public dp::FileOps {
 public:
  ssize_t write(int, const void*, std::size_t) override {
    if (++writes_ > 100) throw std::logic_error("writes again and again");
    return 0;
  }

 private:
  int writes_ = 0;
};

}  // namespace

TEST_CASE("a new file never replaces another and follows no link") {
  const ScratchFolder folder;
  write_bytes(folder / "file", "precious");
  fs::create_symlink(folder / "file", folder / "link");
  fs::create_symlink(folder / "elsewhere", folder / "dangling");
  for (const char* name : {"file", "link", "dangling"}) {
    const Outcome outcome = outcome_of([&] { dp::FileWriter file(folder / name); });
    CHECK(outcome.code == 7);
    CHECK_THAT(outcome.text, Catch::Contains("File exists"));
  }
  CHECK(read_bytes(folder / "file") == "precious");
  CHECK_FALSE(fs::exists(folder / "elsewhere"));
}

TEST_CASE("a temporary name lies beside its target and is unused") {
  const ScratchFolder folder;
  const dp::PathParts target = dp::split_path(folder / "last");
  const auto number_of = [&](const std::string& path) {
    const std::string begin = folder / (".last.tmp-" + std::to_string(::getpid()) + "-");
    REQUIRE(path.starts_with(begin));
    return std::stoi(path.substr(begin.size()));
  };
  const int first = number_of(dp::temporary_sibling(target, "tmp"));
  const std::string taken = folder / (".last.tmp-" + std::to_string(::getpid()) + "-");
  write_bytes(taken + std::to_string(first + 1), "");
  fs::create_symlink("nothing", taken + std::to_string(first + 2));
  CHECK(number_of(dp::temporary_sibling(target, "tmp")) == first + 3);
}

TEST_CASE("a write that writes nothing is an I/O error, not an endless loop") {
  const ScratchFolder folder;
  StuckOps ops;
  const ScopedFileOps scope(ops);
  const Outcome outcome = outcome_of([&] { dp::FileWriter(folder / "file").write("text"); });
  CHECK(outcome.code == 7);
  CHECK_THAT(outcome.text, Catch::Contains("Input/output error"));
}
