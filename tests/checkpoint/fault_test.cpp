// Error texts: one line of ASCII with bounded length, whatever they quote.
#include "engine/base/files.h"

#include <cerrno>

#include "checkpoint/files_support.h"
#include "support/catch.h"

using namespace dp::test;

TEST_CASE("printable ASCII stays, and every other byte is escaped") {
  constexpr char kHex[] = "0123456789abcdef";
  for (int byte = 0; byte < 256; ++byte) {
    const std::string text(1, static_cast<char>(byte));
    const std::string escaped = std::string("\\x") + kHex[byte / 16] + kHex[byte % 16];
    CHECK(dp::excerpt("a" + text + "b") == "a" + (byte >= 32 && byte <= 126 ? text : escaped) + "b");
  }
}

TEST_CASE("a long text is cut") {
  const std::string longest(80, 'n');
  CHECK(dp::excerpt(longest) == longest);
  CHECK(dp::excerpt(longest + "n") == longest + "...");
  CHECK(dp::excerpt("abc", 3) == "abc");
  CHECK(dp::excerpt("abcd", 3) == "abc...");
  CHECK(dp::excerpt(std::string(1000, '\n')).size() == 4 * 80 + 3);
  CHECK(dp::excerpt("").empty());
}

TEST_CASE("a path in a message is escaped and not cut below the longest possible path") {
  const std::string rest(200, 'p'), path = "/data/\x1b[2J\n" + rest, shown = "/data/\\x1b[2J\\x0a" + rest;
  CHECK(outcome_of([&] { dp::throw_data(path, "is bad"); }).text == shown + ": is bad");
  const Outcome data = outcome_of([&] { dp::throw_data_errno(path, "reading", 2); });
  CHECK(data.code == 3);
  CHECK(data.text == shown + ": reading failed: No such file or directory");
  const Outcome io = outcome_of([&] { dp::throw_io_errno(path, "writing", 28); });
  CHECK(io.code == 7);
  CHECK(io.text == shown + ": writing failed: No space left on device; free some space");
  CHECK(outcome_of([] { dp::throw_io_errno("file", "writing", EFBIG); }).text ==
        "file: writing failed: File too large; raise ulimit -f");
  CHECK(outcome_of([] { dp::throw_io_errno("file", "writing", EACCES); }).text ==
        "file: writing failed: Permission denied; choose a folder in which you may write");
  CHECK(outcome_of([] { dp::throw_io_errno("file", "writing", EIO); }).text ==
        "file: writing failed: Input/output error");
  const std::string longer(5000, 'p');
  CHECK(outcome_of([&] { dp::throw_data(longer, "x"); }).text == longer.substr(0, 4096) + "...: x");
}
