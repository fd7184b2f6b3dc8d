// dp_train on simulated GPUs, where planning and tuning take minutes: a signal ends it and all its child processes
// within two seconds.
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "apps/ends.h"
#include "apps/idx_files.h"
#include "apps/run_program.h"
#include "cuda/simulated_program.h"
#include "support/catch.h"

namespace {

namespace fs = std::filesystem;
using namespace dp::test;

const Words kResnet{"--dataset", "mnist", "--data-path", ".", "--model", "resnet18", "--gpus", "0-3"};

// Number of processes with this test's environment variables, including the peer probe.
int processes_of(const TemporaryFolder& temp, const std::string& program) {
  int count = 0;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    std::error_code gone;
    const auto text = [&](const char* name) { return read_text(entry.path() / name); };
    if (!fs::exists(entry.path() / "environ", gone)) continue;
    const std::string command = text("cmdline");
    count += text("environ").find("XDG_CACHE_HOME=" + temp.path()) != std::string::npos &&
             command.substr(0, command.find('\0')).ends_with(program);
  }
  return count;
}

void check_interrupted(Program& program, int number, bool ended) {
  CHECK(ended);
  if (!ended) ::kill(program.id(), SIGKILL);
  if (!ended) ::kill(-program.id(), SIGKILL);  // its process group, if it has its own
  const Outcome outcome = program.wait();
  INFO(outcome.err);
  CHECK(outcome.code == 128 + number);
  CHECK(outcome.err == "dp_train: stopping\n");
}

}  // namespace

TEST_CASE("signals on GPUs: planning and tuning end without a checkpoint") {
  Ends ends;
  const TemporaryFolder temp;
  write_tiny_mnist(temp.path());
  for (const int number : {SIGINT, SIGTERM})
    for (const Words& what : {Words{"--print-plan"}, Words{"--output-dir", "run"}, Words{"--dry-run"}}) {
      INFO(what.front() << ", signal " << number);
      Program program(kResnet + what, temp.path(), simulated(temp));
      program.wait_until_signals_are_handled();
      std::this_thread::sleep_for(std::chrono::seconds(1));
      ::kill(program.id(), number);
      check_interrupted(program, number, ends.of(program, what.front()));
      CHECK_FALSE(fs::exists(temp / "run/checkpoints/last"));
    }
}

TEST_CASE("signals on GPUs: a hanging peer probe ends with the program") {
  Ends ends;
  const TemporaryFolder temp;
  write_tiny_mnist(temp.path());
  Program program(kResnet + Words{"--print-plan"}, temp.path(), simulated(temp, "hangs"));
  REQUIRE(becomes([&] { return processes_of(temp, "dp_peer_probe") > 0; }));
  ::kill(program.id(), SIGTERM);
  check_interrupted(program, SIGTERM, ends.of(program, "peer probe"));
  CHECK(becomes([&] { return processes_of(temp, "dp_peer_probe") == 0; }));
}

TEST_CASE("closed standard descriptors are /dev/null in the peer probe") {
  const TemporaryFolder temp;
  Program probe({}, temp.path(), simulated(temp, "hangs"),
                {"/bin/sh", "-c", "exec " DP_SIMULATED_FOLDER "/dp_peer_probe 0:1 <&- 2>&-", "sh"});
  CHECK_FALSE(probe.wait_for("\n").empty());
  std::error_code gone;
  for (const char* descriptor : {"0", "2"})
    CHECK(fs::read_symlink("/proc/" + std::to_string(probe.id()) + "/fd/" + descriptor, gone) == "/dev/null");
  ::kill(probe.id(), SIGKILL);
  probe.wait();
}

// Like `timeout -s TERM 3 dp_train --gpus 0-3 --model resnet18 --print-plan` in a shell. The timer of `timeout` is the
// signal that this test sends, once dp_train has installed its handlers.
TEST_CASE("signals on GPUs: the command timeout ends --print-plan") {
  Ends ends;
  const TemporaryFolder temp;
  write_tiny_mnist(temp.path());
  Program program(kResnet + Words{"--print-plan"}, temp.path(), simulated(temp),
                  {"/usr/bin/timeout", "--preserve-status", "-s", "TERM", "10000"}, Program::Group::own);
  program.wait_until_signals_are_handled(1);
  ::kill(program.id(), SIGALRM);
  check_interrupted(program, SIGTERM, ends.of(program, "timeout"));
}
