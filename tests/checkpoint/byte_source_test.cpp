// The inputs of the parsers: bytes in memory and files that change while they are read.
#include "engine/checkpoint/safetensors.h"

#include <cerrno>
#include <new>

#include "checkpoint/files_support.h"
#include "checkpoint/scoped_file_ops.h"
#include "engine/checkpoint/safetensors.h"
#include "support/catch.h"

using namespace dp::test;

namespace {

std::string text_at(dp::ByteSource& source, std::uint64_t offset, std::size_t bytes) {
  std::string text(bytes, '?');
  const Outcome outcome = outcome_of([&] { source.read(offset, std::as_writable_bytes(std::span(text))); });
  CHECK(outcome.code == (outcome.text.empty() ? 0 : 3));
  return outcome.text.empty() ? text : outcome.text;
}

// Opens nothing, but returns a number.
class NothingOpen final : public dp::FileOps {
 public:
  int open(int, const char*, int, mode_t) override { return 1 << 20; }
};

class FailingReads final : public dp::FileOps {
 public:
  ssize_t pread(int, void*, std::size_t, off_t) override { return errno = EIO, -1; }
};

// A file that is larger than the available memory.
class Endless final : public dp::ByteSource {
 public:
  const std::string& name() const override { return name_; }
  std::uint64_t size() const override { return 1000; }
  void read(std::uint64_t, std::span<std::byte>) override { throw std::bad_alloc(); }

 private:
  std::string name_ = "endless";
};

}  // namespace

TEST_CASE("bytes in memory are read within their range only") {
  const std::string bytes = "0123";
  dp::MemorySource source("m", std::as_bytes(std::span(bytes)));
  CHECK(source.name() == "m");
  CHECK(source.size() == 4);
  CHECK(text_at(source, 0, 4) == "0123");
  CHECK(text_at(source, 1, 2) == "12");
  CHECK(text_at(source, 4, 0).empty());
  const std::string shorter = "m: became shorter while it was read";
  CHECK(text_at(source, 1, 4) == shorter);
  CHECK(text_at(source, 0, 5) == shorter);
  CHECK(text_at(source, 5, 0) == shorter);
  CHECK(text_at(source, ~std::uint64_t{0}, 1) == shorter);
}

TEST_CASE("a file that becomes shorter or unreadable while it is read is an error at that byte") {
  const ScratchFolder folder;
  const std::string path = folder / "file";
  write_bytes(path, "0123456789");
  dp::FileSource source(path);
  CHECK(source.name() == path);
  CHECK(source.size() == 10);
  CHECK(text_at(source, 3, 7) == "3456789");
  std::filesystem::resize_file(path, 5);
  CHECK(text_at(source, 3, 2) == "34");
  CHECK(text_at(source, 3, 4) == path + ": ends at byte 5; it was truncated while it was read");
  FailingReads failing;
  const ScopedFileOps scope(failing);
  CHECK(text_at(source, 4, 1) == path + ": reading at byte 4 failed: Input/output error");
}

TEST_CASE("a file whose size cannot be read, or that does not fit into memory, is an error") {
  NothingOpen ops;
  const ScopedFileOps scope(ops);
  const Outcome unknown = outcome_of([] { dp::FileSource source("file"); });
  CHECK(unknown.code == 3);
  CHECK(unknown.text == "file: reading its size failed: Bad file descriptor");
  Endless endless;
  const Outcome large = outcome_of([&] { dp::read_safetensors(endless); });
  CHECK(large.code == 3);
  CHECK(large.text == "endless: does not fit into memory");
}
