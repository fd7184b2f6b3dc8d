// Standard descriptors, standard output, and files that are written whole.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <thread>

#include "dp/error.h"
#include "dp/standard_descriptors.h"
#include "engine/base/files.h"
#include "support/catch.h"
#include "support/refusal.h"
#include "support/temporary_folder.h"

using namespace dp::test;
namespace fs = std::filesystem;

namespace {

// Runs `body` in a child process and returns its text.
std::string in_child(const std::function<std::string()>& body) {
  int ends[2] = {-1, -1};
  REQUIRE(::pipe(ends) == 0);
  std::fflush(stdout);
  const pid_t child = ::fork();
  if (child == 0) {
    const int reply = ::fcntl(ends[1], F_DUPFD, 10);
    ::close(ends[0]), ::close(ends[1]);
    const std::string text = body();
    const bool sent = ::write(reply, text.data(), text.size()) == static_cast<ssize_t>(text.size());
    ::_exit(sent ? 0 : 1);
  }
  ::close(ends[1]);
  std::string text;
  char part[256];
  for (ssize_t got = 0; (got = ::read(ends[0], part, sizeof part)) > 0;)
    text.append(part, static_cast<std::size_t>(got));
  ::close(ends[0]);
  int status = -1;
  ::waitpid(child, &status, 0);
  CHECK(status == 0);
  return text;
}

// What flush_stdout() reports after "text" was printed to this file.
std::string flushed(int file, bool before) {
  return in_child([&]() -> std::string {
    ::signal(SIGPIPE, SIG_IGN);
    ::dup2(file, 1);
    std::fputs("text", stdout);
    if (before) std::fflush(stdout);
    try {
      dp::flush_stdout();
    } catch (const dp::Error& error) {
      return std::to_string(static_cast<int>(error.code())) + " " + error.what();
    }
    return "flushed";
  });
}

template <typename Work>
std::string refusal(Work&& work) {
  return refusal_of(work, dp::ErrorCode::io);
}

}  // namespace

TEST_CASE("a failed write to standard output is an error, except if the reader has closed the pipe") {
  const TemporaryFolder temp;
  const int file = ::open((temp / "out").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  CHECK(flushed(file, false) == "flushed");
  CHECK(flushed(file, true) == "flushed");
  CHECK(read_text(temp / "out") == "texttext");
  ::close(file);
  const int full = ::open("/dev/full", O_WRONLY);
  REQUIRE(full >= 0);
  CHECK(flushed(full, false) ==
        "7 stdout could not be written: No space left on device; redirect it to a place with free space");
  CHECK(flushed(full, true) == "7 stdout could not be written; redirect it to a place with free space");
  ::close(full);
  int ends[2] = {-1, -1};
  REQUIRE(::pipe(ends) == 0);
  ::close(ends[0]);
  CHECK(flushed(ends[1], false) == "flushed");
  CHECK(flushed(ends[1], true) == "flushed");
  ::close(ends[1]);
}

TEST_CASE("closed standard descriptors are opened for reading and writing, and open ones are kept") {
  const TemporaryFolder temp;
  const int file = ::open((temp / "file").c_str(), O_RDWR | O_CREAT, 0600);
  for (int closed = 0; closed < 8; ++closed) {
    const std::string state = in_child([&] {
      for (const int descriptor : {0, 1, 2}) {
        ::dup2(file, descriptor);
        if ((closed >> descriptor & 1) != 0) ::close(descriptor);
      }
      dp::open_standard_descriptors();
      std::string text;
      for (const int descriptor : {0, 1, 2}) {
        std::error_code error;
        const fs::path target = fs::read_symlink("/proc/self/fd/" + std::to_string(descriptor), error);
        const bool both = (::fcntl(descriptor, F_GETFL) & O_ACCMODE) == O_RDWR;
        text += target == "/dev/null" ? 'n' : target.filename() == "file" ? 'f' : '?';
        text += both ? '+' : '-';
      }
      return text;
    });
    std::string expected;
    for (const int descriptor : {0, 1, 2}) expected += (closed >> descriptor & 1) != 0 ? "n+" : "f+";
    CHECK(state == expected);
  }
  ::close(file);
}

TEST_CASE("a slow reader of a pipe receives the whole text") {
  const TemporaryFolder temp;
  REQUIRE(::mkfifo((temp / "pipe").c_str(), 0600) == 0);
  const int reader = ::open((temp / "pipe").c_str(), O_RDONLY | O_NONBLOCK);
  REQUIRE(reader >= 0);
  REQUIRE(::fcntl(reader, F_SETFL, 0) == 0);
  std::string text;
  for (int i = 0; text.size() < (1 << 20); ++i) text += std::to_string(i) + "\n";  // more than a pipe holds
  std::atomic<bool> ended{false};
  std::string copy;
  std::thread copies([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the pipe is full by then
    char part[4096];
    while (true) {
      const bool last = ended;
      const ssize_t got = ::read(reader, part, sizeof part);
      if (got > 0)
        copy.append(part, static_cast<std::size_t>(got));
      else if (last)
        break;
    }
  });
  const std::string outcome = refusal([&] { dp::write_file_atomically(temp / "pipe", text); });
  ended = true;
  copies.join();
  ::close(reader);
  CHECK(outcome == "accepted");
  CHECK((copy == text));
}

TEST_CASE("a pipe without a reader and a missing folder are rejected with the reason") {
  const TemporaryFolder temp;
  REQUIRE(::mkfifo((temp / "pipe").c_str(), 0600) == 0);
  const std::string rest = "; check the path, its permissions and the free space";
  const std::string lonely = "cannot write '" + (temp / "pipe") + "': it is a pipe or socket without a reader" + rest;
  CHECK(refusal([&] { dp::require_writable(temp / "pipe"); }) == lonely);
  CHECK(refusal([&] { dp::write_file_atomically(temp / "pipe", "x"); }) == lonely);
  CHECK(refusal([&] { dp::require_writable(temp.path()); }) ==
        "cannot write '" + temp.path() + "': Is a directory" + rest);
  CHECK(refusal([&] { dp::require_writable(temp / "none/file"); }) ==
        "cannot write '" + (temp / "none/file") + "': No such file or directory" + rest);
  CHECK(refusal([&] { dp::write_file_atomically("/dev/full", "x"); }) ==
        "cannot write '/dev/full': No space left on device" + rest);
  CHECK_FALSE(static_cast<bool>(dp::require_writable(temp / "new")));
  CHECK_FALSE(fs::exists(temp / "new"));
  CHECK(static_cast<bool>(dp::require_writable("/dev/null")));
}

TEST_CASE("a dangling symbolic link is replaced by the file") {
  const TemporaryFolder temp;
  fs::create_symlink(temp / "nothing", temp / "link");
  dp::write_file_atomically(temp / "link", "text");
  CHECK(fs::is_regular_file(fs::symlink_status(temp / "link")));
  CHECK(read_text(temp / "link") == "text");
  CHECK_FALSE(fs::exists(temp / "nothing"));
}
