// The same signal sent twice, as launchers and service managers do: one request, one checkpoint. A few runs in the
// ordinary tests, 200 in the slow tests.
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <random>
#include <thread>

#include "apps/idx_files.h"
#include "apps/processes.h"
#include "apps/run_program.h"
#include "dp/checkpoint.h"
#include "support/catch.h"
#include "support/patience.h"

namespace {

using namespace dp::test;

Words endless(const Words& engine) {
  return Words{"--dataset", "mnist",   "--data-path", ".", "--model",      "mlp", "-b", "16",
               "--epochs",  "1000000", "--lr",        "0", "--output-dir", "run", "-p", "1"} +
         engine;
}

void pause_ms(std::size_t milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); }

// The sender of both signals: a person; `timeout`, which signals its child and its group; a service manager, which
// signals the process and its group; killall, which signals the ranks and the launcher, which forwards the signal.
enum class Sender { person, timeout, manager, killall };

// What dp_train takes for one request: signals within a second, 20 ticks of 50 ms. Shorter by four ticks.
constexpr std::chrono::milliseconds kOnce{800};

// Whether a signal is in a set that /proc shows of a process: "ShdPnd" (it waits for a handler), "SigIgn" (ignored).
bool is_in(const std::string& set, pid_t process, int number) {
  const std::string status = read_text("/proc/" + std::to_string(process) + "/status"), name = set + ":";
  const std::size_t at = status.find(name);
  return at != std::string::npos &&
         (std::stoull(status.substr(at + name.size()), nullptr, 16) >> (number - 1) & 1) != 0;
}

// Whether a process exists that has not ended.
bool runs(pid_t process) {
  const char state = state_of(process);
  return state != '-' && state != 'Z' && state != 'X';
}

// Returns false if the sender was so slow that the second signal counts as a second request, or comes after a rank has
// ended by the first.
bool send_twice(const Program& program, Sender sender, int number, std::size_t pause) {
  const auto begin = std::chrono::steady_clock::now();
  std::vector<pid_t> ranks;
  switch (sender) {
    case Sender::timeout:
      ::kill(program.id(), number);
      // `timeout` ignores SIGCONT before it sends SIGCONT to its group. By then it has sent the signal twice.
      becomes([&] { return program.has_ended() || is_in("SigIgn", program.id(), SIGCONT); });
      return std::chrono::steady_clock::now() - begin < kOnce;
    case Sender::killall: {
      ranks = children_of(program.id());
      for (const pid_t one : ranks) ::kill(one, number);
      if (ranks.empty()) ::kill(program.id(), number);
      break;
    }
    case Sender::person:
    case Sender::manager: ::kill(program.id(), number);
  }
  pause_ms(pause);
  ::kill(sender == Sender::manager ? -program.id() : program.id(), number);
  return std::all_of(ranks.begin(), ranks.end(), runs) && std::chrono::steady_clock::now() - begin < kOnce;
}

void check_checkpoints(const Words& engine, int number) {
  std::mt19937 random(11);
  for (int i = 0; i < DP_DOUBLE_SIGNALS / 4; ++i) {
    const auto sender = static_cast<Sender>(i % 4);
    const TemporaryFolder temp;
    write_tiny_mnist(temp.path());
    const Words launcher =
        sender == Sender::timeout ? Words{"/usr/bin/timeout", "--preserve-status", "10000"} : Words{};
    // Most signals arrive within a step. With a gate the watchdog gives a slow rank more time after a stop.
    Program program(endless(engine), temp.path(), {"DP_FAIL=stall:backward:dev0:30ms", "DP_FAIL_GATE=" + temp / "gate"},
                    launcher, Program::Group::own);
    program.wait_for("[1/4]");
    pause_ms(random() % 60);
    const bool once = send_twice(program, sender, number, random() % 40);
    const Outcome outcome = program.wait();
    INFO("run " << i << ", sender " << static_cast<int>(sender) << ": " << outcome.err);
    // If the sender was slow, a rank may stop at another rank's request before its own signal arrives.
    REQUIRE((outcome.code == 128 + number || (!once && outcome.code == 128 + SIGINT)));
    if (once) REQUIRE(dp::load_checkpoint(temp / "run/checkpoints/last").state.step > 0);
  }
}

}  // namespace

TEST_CASE("signals: SIGTERM sent twice within a second counts once and leaves a checkpoint") {
  check_checkpoints(kDp, SIGTERM);
}
TEST_CASE("signals: SIGINT sent twice within a second counts once and leaves a checkpoint") {
  check_checkpoints(kDp, SIGINT);
}
TEST_CASE("signals: SIGTERM sent twice to ranks counts once and leaves a checkpoint") {
  check_checkpoints(kDdp, SIGTERM);
}
TEST_CASE("signals: SIGINT sent twice to ranks counts once and leaves a checkpoint") {
  check_checkpoints(kDdp, SIGINT);
}

TEST_CASE("signals: a signal that the launcher forwards does not count as the second, however late it arrives") {
  const TemporaryFolder temp;
  write_tiny_mnist(temp.path());
  const StallGate gate(temp / "gate");
  Program program(endless(kDdp), temp.path(), {"DP_FAIL=stall:backward:dev0:step2:600000ms", gate.variable()});
  gate.wait_for();
  for (const pid_t rank : children_of(program.id())) ::kill(rank, SIGTERM);
  CHECK(program.wait_for_error("stopping").find("stopping after a checkpoint is written") != std::string::npos);
  pause_ms(1500);  // from another sender it would count now
  ::kill(program.id(), SIGTERM);
  pause_ms(300);  // the launcher forwards it within 50 ms
  gate.open();
  const Outcome outcome = program.wait();
  INFO(outcome.err);
  CHECK(outcome.code == 128 + SIGTERM);
  REQUIRE(std::filesystem::exists(temp / "run/checkpoints/last/manifest.json"));
}

TEST_CASE("signals: time in which the process is stopped does not count between two equal signals") {
  for (int tries = 0; tries < 5; ++tries) {
    const TemporaryFolder temp;
    write_tiny_mnist(temp.path());
    const StallGate gate(temp / "gate");
    Program program(endless(kDp), temp.path(), {"DP_FAIL=stall:backward:dev0:step2:600000ms", gate.variable()});
    gate.wait_for();
    const auto begin = std::chrono::steady_clock::now();
    ::kill(program.id(), SIGTERM);
    CHECK(program.wait_for_error("stopping").find("stopping after a checkpoint is written") != std::string::npos);
    program.stop();
    const bool once = std::chrono::steady_clock::now() - begin < kOnce;  // else this test got no core: again
    pause_ms(1500);
    ::kill(program.id(), SIGTERM);
    ::kill(program.id(), SIGCONT);
    CHECK(becomes([&] { return !is_in("ShdPnd", program.id(), SIGTERM); }));
    gate.open();
    const Outcome outcome = program.wait();
    INFO(outcome.err);
    CHECK(outcome.code == 128 + SIGTERM);
    if (!once) continue;
    REQUIRE(std::filesystem::exists(temp / "run/checkpoints/last/manifest.json"));
    return;
  }
  FAIL("the test got no core in any of five tries");
}
