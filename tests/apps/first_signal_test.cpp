// The first signal outside a training step: every command ends within two seconds, in every phase that may take long.
// The program is blocked in the phase: by standing_calls.cpp, by a driver that hangs, or by a missing rank.
#include <signal.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <thread>

#include "apps/idx_files.h"
#include "apps/run_program.h"
#include "support/catch.h"
#include "support/free_port.h"
#include "support/patience.h"

namespace {

namespace fs = std::filesystem;
using namespace dp::test;
using Clock = std::chrono::steady_clock;

constexpr double kMostSeconds = 2;

struct Row {
  std::string phase;
  Words arguments;
  std::string stands_at{};  // for standing_calls.cpp; empty: wait one second
  Words variables{};
};

const Words kMnist{"--dataset", "mnist", "--data-path", ".", "--model", "mlp", "-b", "16"};
const Words kImageFolder{"--dataset", "imagefolder", "--data-path", "images", "--model", "resnet18", "-b", "4"};

std::vector<Row> commands() {
  const Words driver{"LD_LIBRARY_PATH=" DP_STANDING_DRIVER};
  return {{"env: the driver", {"env"}, "driver:", driver},
          {"estimate-memory: the driver", {"--model", "mlp", "estimate-memory"}, "driver:", driver},
          {"estimate-memory: planning", {"--cpu", "2", "--model", "mlp", "estimate-memory"}, "primitive:"},
          {"dp: the driver", kMnist, "driver:", driver}};
}

// Phases before a rank opens its devices.
std::vector<Row> rendezvous() {
  const auto rank = [](const std::string& number) {  // separate ports: the ranks never connect
    return Words{"RANK=" + number, "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=" + free_port()};
  };
  return {
      {"launcher: the driver", kMnist + Words{"--engine", "ddp"}, "driver:", {"LD_LIBRARY_PATH=" DP_STANDING_DRIVER}},
      {"launcher: a name server", kMnist + kDdp + Words{"--master-addr", "localhost"}, "getaddrinfo:localhost"},
      {"launcher: a rank that loads its libraries", kMnist + kDdp, "start:1"},
      {"rank: a name server", kMnist + kDdp, "getaddrinfo:127", rank("1")},
      {"rank 0 without the other", kMnist + kDdp, "", rank("0")},
      {"rank 1 without rank 0", kMnist + kDdp, "", rank("1")}};
}

std::vector<Row> phases(const Words& engine) {
  const Words tiny = kMnist + engine;
  return {{"reading a data set", tiny, "open:train-images"},
          {"scanning an image folder", kImageFolder + engine, "open:images/train"},
          {"planning", tiny, "primitive:"},
          {"planning for --print-plan", tiny + Words{"--print-plan"}, "primitive:"},
          {"planning for --dry-run", tiny + Words{"--dry-run"}, "primitive:"},
          {"locking the run's folder", tiny + Words{"--output-dir", "new1"}, "flock:"},
          {"resuming", tiny + Words{"--resume", "trained", "--output-dir", "new2"}, "open:model.safetensors"},
          {"reading --init", tiny + Words{"--init", "trained/checkpoints/last/model.safetensors"},
           "open:model.safetensors"},
          {"-e: reading a checkpoint", tiny + Words{"-e", "--resume", "trained"}, "open:manifest.json"},
          {"-e: a batch", tiny + Words{"-e", "--resume", "trained"}, "execute:"}};
}

// A program that is blocked in its phase.
struct Standing {
  const Row* row;
  int number;  // signal number
  Program program;
  double seconds = -1;  // from the signal to the end of the program
};

Standing start(const Row& row, int number, const TemporaryFolder& temp) {
  static int count = 0;
  const std::string mark = temp / ("stands" + std::to_string(++count));
  Standing one{&row, number,
               Program(row.arguments, temp.path(),
                       row.variables + Words{"LD_PRELOAD=" DP_STANDING_CALLS, "DP_STANDS_AT=" + row.stands_at,
                                             "DP_STANDS_FILE=" + mark})};
  INFO(row.phase);
  one.program.wait_until_signals_are_handled();
  if (row.stands_at.empty())
    std::this_thread::sleep_for(std::chrono::seconds(1));
  else
    CHECK(becomes([&] { return fs::exists(mark); }));
  return one;
}

void interrupt_all(std::vector<Standing>& all) {
  const auto begin = Clock::now();
  for (const Standing& one : all) ::kill(one.program.id(), one.number);
  for (std::size_t left = all.size(); left > 0 && in_time(begin, kMostSeconds);) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    for (Standing& one : all) {
      if (one.seconds >= 0 || !one.program.has_ended()) continue;
      one.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
      --left;
    }
  }
}

void check_end(Standing& one) {
  const bool ended = one.seconds >= 0;
  if (!ended) ::kill(one.program.id(), SIGKILL);
  const Outcome outcome = one.program.wait();
  INFO(one.row->phase << ", signal " << one.number << ", " << one.seconds << " s: " << outcome.err);
  CHECK(ended);
  CHECK(outcome.signal == 0);
  CHECK(outcome.code == 128 + one.number);
  CHECK(outcome.err.find("error") == std::string::npos);
}

void check_all(const char* what, const std::vector<Row>& rows) {
  const TemporaryFolder temp;
  write_tiny_mnist(temp.path());
  for (const char* name : {"images/train/a", "images/train/b", "images/val/a", "images/val/b"})
    fs::create_directories(temp / name);
  REQUIRE(run_dp_train(kMnist + kDp + Words{"--max-steps", "1", "--output-dir", "trained"}, temp.path()).code == 0);
  std::vector<Standing> all;
  for (const Row& row : rows) all.push_back(start(row, all.size() % 2 == 0 ? SIGTERM : SIGINT, temp));
  interrupt_all(all);
  double slowest = 0;
  for (Standing& one : all) {
    check_end(one);
    slowest = std::max(slowest, one.seconds);
    std::printf("%s, %s: %.2f s\n", what, one.row->phase.c_str(), one.seconds);
  }
  std::printf("%s: slowest answer to a first signal: %.2f s\n", what, slowest);
}

}  // namespace

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
TEST_CASE("first signal: every command and phase ends within two seconds") {
  DP_SKIP("the sanitizers' runtimes must be loaded first");
}
#else
TEST_CASE("first signal: commands end within two seconds") { check_all("commands", commands()); }
TEST_CASE("first signal: ranks that wait for each other end within two seconds") {
  check_all("rendezvous", rendezvous());
}
TEST_CASE("first signal: every phase of dp ends within two seconds") { check_all("dp", phases(kDp)); }
TEST_CASE("first signal: every phase of ddp ends within two seconds") { check_all("ddp", phases(kDdp)); }
#endif
