// dp_bench as a process: closed standard descriptors, and signals while it measures.
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "apps/processes.h"
#include "apps/run_program.h"
#include "bench/run_bench.h"
#include "support/catch.h"
#include "support/patience.h"
#include "support/temporary_folder.h"

namespace {

using namespace dp::test;
using Clock = std::chrono::steady_clock;

// False for a zombie, too: its command line is empty.
bool runs(pid_t process) { return !read_text("/proc/" + std::to_string(process) + "/cmdline").empty(); }

}  // namespace

TEST_CASE("closed standard descriptors are /dev/null in dp_bench, and its child processes have their pipes") {
  const TemporaryFolder folder;
  Program program({}, folder.path(), {},
                  {"/bin/sh", "-c", "exec " DP_BENCH_PATH " step --variants plan --seconds 30 <&- >&- 2>&-", "sh"});
  std::vector<pid_t> started;
  CHECK(becomes([&] { return !(started = children_of(program.id())).empty(); }));
  const auto descriptor = [](pid_t process, int number) {
    std::error_code gone;
    return std::filesystem::read_symlink("/proc/" + std::to_string(process) + "/fd/" + std::to_string(number), gone)
        .string();
  };
  for (const int number : {0, 1, 2}) CHECK(descriptor(program.id(), number) == "/dev/null");
  for (const pid_t child : started) {
    CHECK(becomes([&] { return descriptor(child, 2).find("memfd:stderr") != std::string::npos; }));
    for (const int number : {0, 1}) CHECK(descriptor(child, number).starts_with("pipe:"));
  }
  ::kill(program.id(), SIGTERM);
  CHECK(program.wait().signal == SIGTERM);
}

TEST_CASE("closed standard descriptors: dp_bench and its child processes measure as usual") {
  const TemporaryFolder folder;
  for (const char* closed : {"<&-", ">&- 2>&-", "<&- >&- 2>&-"}) {
    const std::string file = folder / "out.json";
    const BenchOutcome outcome =
        run_shell(std::string("sh -c 'exec \"$@\" ") + closed +
                  "' sh " DP_BENCH_PATH
                  " comm --cpu 2 -b 8 -e 8 --rounds 1 --seconds 0.001 --communicators host,host-processes --json " +
                  file);
    INFO(closed << ": " << outcome.text);
    CHECK(outcome.code == 0);
    const nlohmann::json out = nlohmann::json::parse(read_text(file), nullptr, false);
    REQUIRE(out.is_object());
    REQUIRE(out.at("sections").size() == 2);
    for (const auto& section : out.at("sections"))
      for (const auto& row : section.at("rows")) CHECK(row.at("kind") == "measured");
  }
}

TEST_CASE("first signal: every subcommand of dp_bench ends within two seconds with its child processes") {
  const TemporaryFolder folder;
  double slowest = 0;
  const std::vector<std::string> commands{"step --cpu 2 --seconds 30", "ops --cpu --steps 10000",
                                          "comm --cpu 2 --seconds 30", "scaling --cpu 2 --seconds 30",
                                          "pipeline --model mlp --cpu 2 --seconds 30"};
  for (std::size_t i = 0; i < commands.size(); ++i) {
    const int number = i % 2 == 0 ? SIGTERM : SIGINT;
    INFO(commands[i] << ", signal " << number);
    Program program({}, folder.path(), {}, {"/bin/sh", "-c", "exec " DP_BENCH_PATH " " + commands[i], "sh"});
    std::vector<pid_t> started;
    CHECK(becomes([&] { return !(started = children_of(program.id())).empty(); }));
    const auto begin = Clock::now();
    ::kill(program.id(), number);
    CHECK(program.ends_within(2));
    CHECK(becomes([&] { return std::none_of(started.begin(), started.end(), runs); }));
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    CHECK(program.wait().signal == number);
    slowest = std::max(slowest, seconds);
    std::printf("dp_bench, %s: %.2f s\n", commands[i].c_str(), seconds);
  }
  std::printf("dp_bench: slowest answer to a first signal: %.2f s\n", slowest);
}
