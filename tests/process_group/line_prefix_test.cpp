// Output of the ranks, forwarded line by line.
#include "engine/process_group/launcher.h"

#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <string>

#include "engine/base/files.h"
#include "support/catch.h"

using namespace dp;
using process_group::LinePrefix;
using process_group::write_line;

namespace {

// A pipe. Reading does not block.
struct Pipe {
  FileHandle from, to;
  Pipe() {
    int ends[2] = {-1, -1};
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    from = FileHandle(ends[0]);
    to = FileHandle(ends[1]);
    ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  }
  void write(const std::string& text) {
    REQUIRE(::write(to.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  }
  std::string available() {
    std::string text;
    char block[4096];
    ssize_t count = 0;
    while ((count = ::read(from.get(), block, sizeof block)) > 0) text.append(block, static_cast<std::size_t>(count));
    return text;
  }
};

}  // namespace

TEST_CASE("line prefix: complete lines are forwarded at once, the rest when it is complete or at the end") {
  Pipe in, out;
  LinePrefix lines("[rank 7] ", out.to.get());
  CHECK(lines.pass_on(in.from.get()));  // nothing yet
  CHECK(out.available().empty());
  in.write("one\ntw");
  CHECK(lines.pass_on(in.from.get()));
  CHECK(out.available() == "[rank 7] one\n");
  in.write("o\n\n\nlast");
  CHECK(lines.pass_on(in.from.get()));
  CHECK(out.available() == "[rank 7] two\n[rank 7] \n[rank 7] \n");
  in.to.close();
  CHECK_FALSE(lines.pass_on(in.from.get()));
  CHECK(out.available().empty());
  lines.finish();
  CHECK(out.available() == "[rank 7] last\n");
  lines.finish();
  CHECK(out.available().empty());
}

TEST_CASE("line prefix: lines longer than a block are forwarded whole") {
  Pipe in, out;
  LinePrefix lines("> ", out.to.get());
  const std::string first(10000, 'a'), second(4095, 'b'), third(4096, 'c');
  in.write(first + "\n" + second + "\n" + third + "\n");
  CHECK(lines.pass_on(in.from.get()));
  CHECK(out.available() == "> " + first + "\n> " + second + "\n> " + third + "\n");
  lines.finish();
  CHECK(out.available().empty());
}

TEST_CASE("line prefix: a closed input is the end, and a closed output is ignored") {
  Pipe in, out;
  LinePrefix lines("> ", out.to.get());
  CHECK_FALSE(lines.pass_on(-1));
  write_line(-1, "text");
  const auto before = std::signal(SIGPIPE, SIG_IGN);
  out.from.close();
  in.write("one\ntwo\n");
  CHECK(lines.pass_on(in.from.get()));
  write_line(out.to.get(), "text");
  std::signal(SIGPIPE, before);
}
