// The launcher without dp_train: what a rank finds when it starts, and which exit code the launcher returns. Hidden
// cases of this program are the launcher and its ranks.
#include <fcntl.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <regex>
#include <string>
#include <thread>
#include <vector>

#include "apps/processes.h"
#include "dp/launch.h"
#include "engine/process_group/connection.h"
#include "support/catch.h"
#include "support/fake_time.h"
#include "support/patience.h"
#include "support/temporary_folder.h"

using namespace dp;
using namespace dp::test;

namespace {

constexpr unsigned kLongest = 60 + kPatience.count();  // seconds after which a process that hangs ends itself

std::string variable(const char* name) {
  const char* const text = std::getenv(name);
  return text == nullptr ? "-" : text;
}

std::string handling_of(int number) {
  struct sigaction action {};
  ::sigaction(number, nullptr, &action);
  return action.sa_handler == SIG_IGN ? "ignored" : action.sa_handler == SIG_DFL ? "default" : "handled";
}
// At the start of the program: Catch2 installs handlers later.
const std::string kInterrupt = handling_of(SIGINT), kTerminate = handling_of(SIGTERM);

bool is_blocked(int number) {
  sigset_t blocked;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
  return ::sigismember(&blocked, number) == 1;
}

void print(int to, const std::string& line) { ::dprintf(to, "%s\n", line.c_str()); }

void nap() { std::this_thread::sleep_for(std::chrono::milliseconds(5)); }

// A file in the folder of the test. It signals another rank that this rank has reached a point.
std::string mark_of(const std::string& rank) { return variable("DP_TEST_FOLDER") + "/ready" + rank; }
void mark() { write_text(mark_of(variable("RANK")), ""); }
void wait_for_rank(const std::string& rank) {
  while (!std::filesystem::exists(mark_of(rank))) nap();
}
void wait_until_alone() {  // the launcher has seen the end of the other rank
  while (children_of(::getppid()).size() > 1) nap();
}

std::atomic<int> received{0};
void count_signal(int) { ++received; }
std::atomic<int> stop{0};
void stop_ranks(int) { stop = SIGTERM; }

// Rank 0 ends at its signal. Rank 1 then checks that it has one as well.
void judge_signals(const std::string& rank) {
  if (rank == "0") {
    while (received == 0) nap();
    write_text(mark_of("0 has a signal"), "");
    std::_Exit(128 + SIGTERM);
  }
  wait_for_rank("0 has a signal");
  const int signals = received;  // a signal that was sent before has arrived
  write_text(mark_of("1 has judged"), "");
  std::_Exit(signals > 0 ? 128 + SIGTERM : 5);
}

struct Launched {
  int code = -1;
  std::vector<std::string> out, err;  // lines in alphabetical order, without Catch2's
};

// Runs the launcher, which runs its ranks, in this scenario.
Launched launch(const std::string& scenario) {
  const TemporaryFolder folder;
  std::vector<std::string> variables{
      "DP_TEST_SCENARIO=" + scenario, "DP_TEST_FOLDER=" + folder.path(),   "DP_LISTENER=77",
      "TORCHELASTIC_RUN_ID=other",    "TORCHELASTIC_USE_AGENT_STORE=True", "RANK=9"};
  for (char** one = environ; *one != nullptr; ++one) variables.emplace_back(*one);
  std::vector<char*> pointers;
  for (std::string& one : variables) pointers.push_back(one.data());
  pointers.push_back(nullptr);
  posix_spawn_file_actions_t files;
  ::posix_spawn_file_actions_init(&files);
  ::posix_spawn_file_actions_addopen(&files, 1, (folder / "out").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  ::posix_spawn_file_actions_addopen(&files, 2, (folder / "err").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  std::string name = "launcher", filter = "[.launcher]";
  char* words[] = {name.data(), filter.data(), nullptr};
  pid_t child = -1;
  const int failed = ::posix_spawn(&child, "/proc/self/exe", &files, nullptr, words, pointers.data());
  ::posix_spawn_file_actions_destroy(&files);
  REQUIRE(failed == 0);
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  Launched result;
  result.code = WEXITSTATUS(status);
  const auto lines = [&](const std::string& file) {
    std::vector<std::string> kept;
    for (const std::string& line : lines_of(read_text(folder / file)))
      if (line.find("says: ") != std::string::npos || line.find("terminated") != std::string::npos ||
          line.find("dp: ") != std::string::npos)
        kept.push_back(line);
    std::sort(kept.begin(), kept.end());
    return kept;
  };
  result.out = lines("out");
  result.err = lines("err");
  return result;
}

}  // namespace

// Replaces the C library's kill(). In the scenario "stop in a pause" the launcher pauses after each signal.
extern "C" int kill(pid_t to, int number) noexcept {
  const bool sent = ::syscall(SYS_kill, to, number) == 0;
  if (number == SIGTERM && variable("DP_TEST_SCENARIO") == "stop in a pause") wait_for_rank("1 has judged");
  return sent ? 0 : -1;
}

TEST_CASE("a launched rank", "[.launched_rank]") {
  const std::string scenario = variable("DP_TEST_SCENARIO"), rank = variable("RANK");
  if (scenario == "-") return;
  ::alarm(kLongest);
  if (scenario == "start" || scenario == "second host") {
    const std::string listener = variable("DP_LISTENER");
    const std::string port =
        listener == "-" ? "-" : std::to_string(process_group::port_of(FileHandle(std::stoi(listener))));
    std::string line = "says: rank " + rank;
    for (const char* name : {"WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "DP_TOKEN",
                             "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE"})
      line += " " + variable(name);
    print(2, line + " listens " + port);
    print(1, "says: SIGINT " + kInterrupt + (is_blocked(SIGINT) ? " blocked" : "") + ", SIGTERM " + kTerminate +
                 (is_blocked(SIGTERM) ? " blocked" : "") +
                 (::getpgrp() == ::getpgid(::getppid()) ? ", group of the launcher" : ", group of the ranks"));
    std::_Exit(0);
  }
  for (const int number : {SIGINT, SIGTERM}) std::signal(number, SIG_DFL);
  if (scenario.starts_with("stop")) {
    if (scenario != "stop at once") std::signal(SIGTERM, count_signal);
    mark();
    if (rank == "1") {
      wait_for_rank("0");
      ::kill(::getppid(), SIGUSR1);
    }
    if (scenario == "stop in a pause") judge_signals(rank);
    while (received == 0) nap();
    if (scenario == "stop by agreement") {  // rank 0 ends as if rank 1 had requested the stop
      if (rank == "0") std::_Exit(128 + SIGINT);
      wait_until_alone();
      std::_Exit(128 + SIGTERM);
    }
    const auto since = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() - since < std::chrono::milliseconds(300)) nap();
    std::_Exit(10 + received);
  }
  mark();
  if (rank == "0") {
    wait_for_rank("1");
    if (scenario == "both are killed") ::raise(SIGTERM);
    std::_Exit(scenario == "all succeed" ? 0 : 3);
  }
  wait_until_alone();
  if (scenario == "one is killed" || scenario == "both are killed") ::raise(SIGKILL);
  std::_Exit(scenario == "both fail" ? 4 : 0);
}

TEST_CASE("a launcher", "[.launcher]") {
  const std::string scenario = variable("DP_TEST_SCENARIO");
  if (scenario == "-") return;
  ::alarm(kLongest);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  LaunchOptions options;
  options.ranks = options.world_size = 2;
  std::atomic<bool> unsaved{false};
  options.unsaved = &unsaved;
  options.stop = &stop;
  std::signal(SIGUSR1, stop_ranks);
  std::string name = "rank", filter = "[.launched_rank]", too_long(200000, 'x');
  if (scenario == "no start") filter = too_long;
  if (scenario == "second host") {
    options.first_rank = 2;
    options.world_size = 5;
    options.address = "10.1.2.3";
    options.port = 1234;
    options.token = "given";
  }
  if (scenario == "start") {
    std::signal(SIGINT, SIG_IGN);
    std::signal(SIGTERM, SIG_DFL);
    sigset_t both;
    ::sigemptyset(&both);
    for (const int number : {SIGINT, SIGTERM}) ::sigaddset(&both, number);
    ::pthread_sigmask(SIG_BLOCK, &both, nullptr);
  }
  char* words[] = {name.data(), filter.data(), nullptr};
  const TimeOfCoordinator time;  // none passes: a rank that is slow to end after another one is not killed
  const int code = launch_ranks(options, words);
  if (!unsaved) print(2, "says: unsaved was not set");
  std::_Exit(code);
}

TEST_CASE("launched ranks find their variables, their signals unblocked, and a group of their own") {
  const Launched two = launch("start");
  CHECK(two.code == 0);
  const std::string signals = "says: SIGINT ignored, SIGTERM default, group of the ranks";
  CHECK(two.out == std::vector<std::string>{"[rank 1] " + signals, signals});  // rank 0 has the launcher's output
  REQUIRE(two.err.size() == 2);
  std::smatch first, second;
  const std::string same = R"( 127\.0\.0\.1 (\d+) ([0-9a-f]{32}) - - listens )";
  const std::regex leader(R"(\[rank 0\] says: rank 0 2 0)" + same + R"((\d+))");
  const std::regex member(R"(\[rank 1\] says: rank 1 2 1)" + same + "-");
  REQUIRE(std::regex_match(two.err[0], first, leader));
  REQUIRE(std::regex_match(two.err[1], second, member));
  CHECK(first[1] == second[1]);
  CHECK(first[1] == first[3]);  // rank 0 inherits a listener on this port
  CHECK(first[2] == second[2]);
}

TEST_CASE("launched ranks of a second host have the address, the port and the token that were given") {
  const Launched two = launch("second host");
  CHECK(two.code == 0);
  CHECK(two.err == std::vector<std::string>{"[rank 2] says: rank 2 5 0 10.1.2.3 1234 given - - listens -",
                                            "[rank 3] says: rank 3 5 1 10.1.2.3 1234 given - - listens -"});
  REQUIRE(two.out.size() == 2);
  CHECK_THAT(two.out[0], Catch::StartsWith("[rank 2] says: "));
  CHECK_THAT(two.out[1], Catch::StartsWith("[rank 3] says: "));
}

TEST_CASE("the launcher returns the code of the first rank that failed, or of the one that a signal ended") {
  const std::string killed = "rank 1 was terminated by signal 9 (Killed)";
  struct Row {
    const char* scenario;
    int code;
    std::vector<std::string> err;
  };
  const Row rows[] = {{"all succeed", 0, {}},
                      {"one fails", 3, {}},
                      {"both fail", 3, {}},
                      {"one is killed", 128 + SIGKILL, {killed}},
                      {"both are killed", 128 + SIGTERM, {"rank 0 was terminated by signal 15 (Terminated)", killed}}};
  for (const Row& row : rows) {
    INFO(row.scenario);
    const Launched launched = launch(row.scenario);
    CHECK(launched.code == row.code);
    CHECK(launched.err == row.err);
  }
}

TEST_CASE("the launcher forwards a signal once, and reports no rank that it ended") {
  const Launched handled = launch("stop"), unhandled = launch("stop at once");
  CHECK(handled.code == 11);  // 10 and the number of signals
  CHECK(handled.err.empty());
  CHECK(unhandled.code == 128 + SIGTERM);
  CHECK(unhandled.err.empty());
  CHECK(launch("stop by agreement").code == 128 + SIGTERM);
}

TEST_CASE("the launcher forwards a signal to every rank before any rank can end by it") {
  CHECK(launch("stop in a pause").code == 128 + SIGTERM);
}

TEST_CASE("the launcher reports a rank whose program cannot be started") {
  const Launched launched = launch("no start");
  CHECK(launched.code == 127);
  const std::string why =
      "dp: cannot start " + std::filesystem::read_symlink("/proc/self/exe").string() + ": Argument list too long";
  CHECK(launched.err == std::vector<std::string>{"[rank 0] " + why, "[rank 1] " + why});
}
