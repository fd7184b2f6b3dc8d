// The bytes that the console writes to a terminal, to a file, and when it is quiet.
#include <fcntl.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <optional>
#include <thread>

#include "engine/train/console.h"
#include "support/catch.h"
#include "support/temporary_folder.h"

namespace {

using namespace dp;
using dp::test::read_text;
using dp::test::TemporaryFolder;

// Sets an environment variable, or removes it (null), until destroyed.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    set(value);
  }
  ~Variable() { set(old_ ? old_->c_str() : nullptr); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  void set(const char* value) const {
    if (value != nullptr)
      ::setenv(name_, value, 1);
    else
      ::unsetenv(name_);
  }
  const char* name_;
  std::optional<std::string> old_;
};

// Calls `body` while `descriptor` is `file`. No checks within: Catch may print.
void with_output(int descriptor, int file, const std::function<void()>& body) {
  std::cout.flush();
  std::fflush(stdout);
  const int saved = ::dup(descriptor);
  ::dup2(file, descriptor);
  body();
  std::fflush(stdout);
  ::dup2(saved, descriptor);
  ::close(saved);
}

std::string on_file(int descriptor, const std::function<void()>& body) {
  const TemporaryFolder temp;
  const int file = ::open((temp / "out").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  REQUIRE(file >= 0);
  with_output(descriptor, file, body);
  ::close(file);
  return read_text(temp / "out");
}

// A terminal of 80 columns that changes no byte.
std::string on_terminal(const std::function<void()>& body, const char* name = "xterm", const char* no_color = nullptr) {
  const Variable term("TERM", name), plain("NO_COLOR", no_color);
  const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  REQUIRE(terminal >= 0);
  REQUIRE(::grantpt(terminal) == 0);
  REQUIRE(::unlockpt(terminal) == 0);
  const int inner = ::open(::ptsname(terminal), O_RDWR | O_NOCTTY | O_CLOEXEC);
  REQUIRE(inner >= 0);
  termios raw{};
  REQUIRE(::tcgetattr(inner, &raw) == 0);
  ::cfmakeraw(&raw);
  REQUIRE(::tcsetattr(inner, TCSANOW, &raw) == 0);
  winsize size{};
  size.ws_row = 24, size.ws_col = 80;
  REQUIRE(::ioctl(terminal, TIOCSWINSZ, &size) == 0);
  with_output(STDOUT_FILENO, inner, body);
  ::close(inner);
  std::string printed;
  char buffer[4096];
  for (ssize_t got; (got = ::read(terminal, buffer, sizeof buffer)) > 0;)  // EIO: all is read
    printed.append(buffer, static_cast<std::size_t>(got));
  ::close(terminal);
  return printed;
}

StepReport step(std::int64_t batch) {
  StepReport report;
  report.batch = batch, report.batches = 2, report.step = batch + 1;
  report.recent = report.epoch_so_far = {.loss_sum = 5, .samples = 10, .top1 = 5};
  return report;
}

EpochReport epoch() {
  EpochReport report;
  report.seconds = 1;
  report.train = {.loss_sum = 5, .samples = 10};
  return report;
}

EvalReport evaluation(bool alone) {
  EvalReport report;
  report.stats = {.loss_sum = 5, .samples = 10, .top1 = 5};
  report.alone = alone;
  return report;
}

// A line that replaces the open one.
std::string over(const std::string& line) { return "\r" + line + "\x1b[J\r"; }
std::string bold(const std::string& text) { return "\x1b[1m" + text + "\x1b[0m\n"; }
const std::string kAfterProgress = "\n\x1b[J";

TEST_CASE("on a terminal progress is one rewritten line, and other work and results have separate lines") {
  const std::string printed = on_terminal([] {
    TrainerCallbacks console = console_callbacks();
    console.on_work({"Planning layers"});
    console.on_work({"Planning layers", 1, 1});
    console.on_message("a note\x01");
    console.on_step(step(0));
    console.on_work({"Test", 0, 2});
    console.on_step(step(1));
    std::this_thread::sleep_for(std::chrono::milliseconds(120));
    console.on_work({"Test", 1, 2});
    console.on_eval(evaluation(false));
    console.on_eval(evaluation(true));
    console.on_epoch(epoch());
    console.on_step(step(0));
    console = {};
  });
  CHECK(printed == over("Planning layers ...") + over("") + "\x1b[33ma note\\x01\x1b[0m\n" +
                       over(step_line(step(0), 0, 80)) + kAfterProgress + over(work_line({"Test", 0, 2}, 80)) +
                       over(step_line(step(1), 0, 80)) + kAfterProgress + over(work_line({"Test", 1, 2}, 80)) +
                       over("") + bold("Test: Acc@1 50.000  loss 0.5") + bold(epoch_line(epoch(), 0, 80)) +
                       over(step_line(step(0), 0, 80)) + kAfterProgress);
}

TEST_CASE("a terminal shows other work at most ten times a second") {
  std::chrono::steady_clock::duration took{};
  const std::string printed = on_terminal([&] {
    const TrainerCallbacks console = console_callbacks();
    const auto begin = std::chrono::steady_clock::now();
    console.on_work({"Test", 0, 9});
    console.on_work({"Test", 1, 9});
    console.on_work({"Test", 2, 9});
    took = std::chrono::steady_clock::now() - begin;
    console.on_work({"Test", 9, 9});  // the end is not delayed
  });
  if (took < std::chrono::milliseconds(100)) CHECK(printed == over(work_line({"Test", 0, 9}, 80)) + over(""));
}

void print_all(const ConsoleOptions& options) {
  const TrainerCallbacks console = console_callbacks(options);
  console.on_work({"Planning layers"});
  console.on_step(step(0));
  console.on_message("a note\x01");
  console.on_work({"Test", 0, 2});
  console.on_eval(evaluation(true));
  console.on_epoch(epoch());
}

TEST_CASE("a file, and a terminal without the rewritten line, get plain lines") {
  const std::string line = step_line(step(0)) + "\n", test = "Test: Acc@1 50.000  loss 0.5";
  CHECK(on_file(STDOUT_FILENO, [] { print_all({}); }) ==
        line + "a note\\x01\n" + test + "\n" + epoch_line(epoch(), 0) + "\n");
  CHECK(on_terminal([] { print_all({}); }, "dumb") ==
        line + "a note\\x01\n" + test + "\n" + epoch_line(epoch(), 0) + "\n");
  CHECK(on_terminal([] { print_all({.progress = false}); }) ==
        line + "\x1b[33ma note\\x01\x1b[0m\n" + bold(test) + bold(epoch_line(epoch(), 0)));
}

TEST_CASE("NO_COLOR removes colours from a terminal unless it is empty") {
  const auto note = [](const char* no_color) {
    return on_terminal([] { console_callbacks().on_message("x"); }, "xterm", no_color);
  };
  CHECK(note("1") == "x\n");
  CHECK(note("") == "\x1b[33mx\x1b[0m\n");
}

TEST_CASE("a quiet console prints nothing but notices, on stderr") {
  std::string errors;
  const std::string printed =
      on_file(STDOUT_FILENO, [&] { errors = on_file(STDERR_FILENO, [] { print_all({.quiet = true}); }); });
  CHECK(printed.empty());
  CHECK(errors == "a note\\x01\n");
  CHECK(on_terminal([] {
          const TrainerCallbacks console = console_callbacks({.quiet = true});
          console.on_work({"Planning layers"});
          console.on_step(step(0));
          console.on_epoch(epoch());
        }).empty());
}

TEST_CASE("the closing text is wrapped at the width of the terminal, and nowhere in a file") {
  RunSummary summary;
  summary.interrupted = true;
  summary.output_dir = "runs/a name that is so long that neither it nor the command fits in 80 columns";
  const std::string text = summary_text(summary, "--cpu 3");
  CHECK(on_file(STDOUT_FILENO, [&] { print_summary(summary, "--cpu 3"); }) == text);
  const std::string wrapped_text = wrapped(text, 80);
  CHECK(wrapped_text != text);
  const std::string command = text.substr(text.find("Interrupted"));
  CHECK_THAT(wrapped_text, Catch::EndsWith("\n" + command));  // it can be copied from one line
  CHECK(on_terminal([&] { print_summary(summary, "--cpu 3"); }) == wrapped_text);
}

}  // namespace
