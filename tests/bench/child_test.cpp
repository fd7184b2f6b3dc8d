// Measured programs as child processes: their CPU time, their end and their answers.
#include "apps/dp_bench/child.h"

#include <unistd.h>

#include <array>
#include <cmath>
#include <filesystem>
#include <sstream>

#include "bench/fake_programs.h"
#include "support/catch.h"
#include "support/patience.h"

using namespace dp_bench;
using dp::test::FakePrograms;
using Lines = std::vector<std::string>;

namespace {

const double kLongest = 60 + static_cast<double>(dp::test::kPatience.count());  // seconds; no answer takes as long

// user, nice, system, irq, softirq and steal of all processors, in seconds.
double busy_seconds() {
  std::istringstream words(dp::test::read_text("/proc/stat"));
  std::string name;
  std::array<double, 8> ticks{};
  words >> name;
  for (double& value : ticks) words >> value;
  return (ticks[0] + ticks[1] + ticks[2] + ticks[5] + ticks[6] + ticks[7]) /
         static_cast<double>(::sysconf(_SC_CLK_TCK));
}

Lines all_lines(const std::string& script) {
  Lines lines;
  CHECK(Child({"/bin/sh", "-c", script}, {}).read_all([&](const std::string& line) { lines.push_back(line); }) == 0);
  return lines;
}

}  // namespace

TEST_CASE("a field that is not exactly a number is read as NaN") {
  const Reply reply = parse_reply("done\ta=1.5\tb=1.5x\tc=-2e-3\td=x1\tno value\t=nameless\te=inf");
  CHECK(reply.number("a") == 1.5);
  CHECK(std::isnan(reply.number("b")));
  CHECK(reply.number("c") == -0.002);
  CHECK(std::isnan(reply.number("d")));
  CHECK(std::isinf(reply.number("e")));
  CHECK(std::isnan(reply.number("nothing")));
  CHECK(reply.fields.size() == 6);
  CHECK(reply.text("") == "nameless");
  CHECK(parse_reply("").word.empty());
  CHECK(parse_reply("ready").fields.empty());
}

TEST_CASE("the CPU time of a program is that of its user code and of its system calls") {
  // Works until it has at least 0.1 s of both, prints them in ticks, and waits.
  Child child({"/bin/sh", "-c", R"sh(
user=0 system=0
while [ $user -lt 10 ] || [ $system -lt 10 ]; do
  i=0
  while [ $i -lt 500 ]; do i=$((i + 1)); [ -e /proc/self/stat ]; done
  read -r line < /proc/$$/stat
  set -- ${line##*) }
  user=${12} system=${13}
done
printf 'done\tuser=%s\tsystem=%s\n' $user $system
read -r end)sh"},
              {});
  const Reply reply = child.read(kLongest);
  const double ticks = std::round(child.cpu_seconds() * static_cast<double>(::sysconf(_SC_CLK_TCK)));
  CHECK(ticks >= reply.number("user") + reply.number("system"));
  CHECK(ticks <= reply.number("user") + reply.number("system") + 5);
  CHECK(child.id() > 0);
}

TEST_CASE("the CPU time of the machine is the busy time of all processors, without idle time and waits for disks") {
  const double before = busy_seconds(), now = machine_cpu_seconds(), after = busy_seconds();
  CHECK(before <= now);
  CHECK(now <= after);
  CHECK(now > 0);
}

TEST_CASE("all lines of a program are read, and a failed program is an error with its last message") {
  CHECK(all_lines("echo one; echo; printf 'two\\nunfinished'") == Lines{"one", "", "two"});
  std::string expected(10000, 'x');
  CHECK(all_lines("i=0; while [ $i -lt 1000 ]; do printf xxxxxxxxxx; i=$((i + 1)); done; echo") == Lines{expected});
  const auto reads = [](const std::string& script) {
    Child({"/bin/sh", "-c", script}, {}).read_all([](const std::string&) {});
  };
  CHECK_THROWS_WITH(reads("echo a >&2; echo 'b c' >&2; echo >&2; exit 3"), "sh failed: b c");
  CHECK_THROWS_WITH(reads("kill -9 $$"), "sh failed: it printed no message");
}

TEST_CASE("an error about a program has its name without the folder") {
  CHECK_THROWS_WITH(Child({"/no/such/program"}, {}).read(kLongest), "program ended: No such file or directory");
  CHECK_THROWS_WITH(Child({"sh", "-c", "exit 3"}, {}).read(kLongest), "sh ended: it printed no message");
  CHECK_THROWS_WITH(Child({"/bin/sh", "-c", "read -r end"}, {}).read(0.05), "sh did not answer within 0 s");
  CHECK_THROWS_WITH(Child({"/bin/sh", "-c", "printf 'error\\tmessage=out of luck\\n'"}, {}).read(kLongest),
                    "out of luck");
  Child ended({"/bin/sh", "-c", "echo gone >&2; exec <&-; echo ready; exit 3"}, {});
  CHECK(ended.read(kLongest).word == "ready");
  CHECK_THROWS_WITH(ended.send("run 1"), "sh ended: gone");
}

TEST_CASE("a program reads what is sent, a line at a time, until its input is closed") {
  Child child({"/bin/sh", "-c", "while read -r line; do echo \"got $line\"; done; echo end"}, {});
  child.send("run 1");
  child.send("run 2");
  CHECK(child.read(kLongest).word == "got run 1");
  CHECK(child.read(kLongest).word == "got run 2");
  child.end_input();
  CHECK(child.read(kLongest).word == "end");
}

TEST_CASE("a program starts without OpenMP's variables and with the default action of SIGPIPE") {
  for (const char* name : {"OMP_A", "GOMP_A", "KMP_A", "DP_A"}) ::setenv(name, "given", 1);
  Child child({"/bin/sh", "-c", "echo \"${OMP_A-no} ${GOMP_A-no} ${KMP_A-no} $DP_A $OMP_B\"; kill -PIPE $$; echo more"},
              {"OMP_B=own"});
  for (const char* name : {"OMP_A", "GOMP_A", "KMP_A", "DP_A"}) ::unsetenv(name);
  CHECK(child.read(kLongest).word == "no no no given own");
  CHECK_THROWS_WITH(child.read(kLongest), "sh ended: it printed no message");
}

TEST_CASE("measured programs are found in DP_BENCH_PATH first, and the error lists the searched folders") {
  const std::filesystem::path own = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  std::string searched;
  for (const char* place : {".", "../../benchmarks", "../lib/dp"})
    searched += ", " + (own / place).lexically_normal().string();
  const std::string remedy =
      "; build it (cmake --build <build> --target bench_none) or set DP_BENCH_PATH to its folder";
  {
    const FakePrograms fakes;
    fakes.add("bench_step", "");
    CHECK(find_program("bench_step") == fakes.path() + "/bench_step");
    CHECK_THROWS_WITH(find_program("bench_none"),
                      "program bench_none not found in " + fakes.path() + searched + remedy);
    for (const char* relative : {".", "programs", "./programs", "~/programs"}) {
      ::setenv("DP_BENCH_PATH", relative, 1);
      CHECK_THROWS_WITH(find_program("bench_step"), "DP_BENCH_PATH is " + std::string(relative) +
                                                        ", which depends on the working folder; set an absolute path");
    }
    ::setenv("DP_BENCH_PATH", "", 1);
    CHECK_THROWS_WITH(find_program("bench_none"), "program bench_none not found in " + searched.substr(2) + remedy);
  }
  CHECK(std::filesystem::exists(find_program("bench_comm")));
}

TEST_CASE("other processes can open a memory file by its path while its owner exists") {
  std::string path;
  {
    const SharedFile file;
    path = file.path();
    CHECK(all_lines("printf hello > " + path + "; cat " + path + "; echo") == Lines{"hello"});
    CHECK(std::filesystem::exists(path));
  }
  CHECK_FALSE(std::filesystem::exists(path));
}
