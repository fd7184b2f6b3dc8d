// The first signal ends everything except a training step within two seconds. A training step is completed
// and saved.
#include <signal.h>
#include <turbojpeg.h>

#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "apps/ends.h"
#include "apps/idx_files.h"
#include "apps/run_program.h"
#include "support/catch.h"
#include "support/patience.h"

namespace {

namespace fs = std::filesystem;
using namespace dp::test;
const Words kTiny{"--dataset", "mnist", "--data-path", ".", "--model", "mlp", "-b", "16", "--deterministic"};

// The standard output is a full pipe without a reader: every print blocks.
const Words kFullOutput{"/bin/sh", "-c", "head -c 65536 /dev/zero; exec \"$@\"", "sh"};

void wait_for_seconds(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

// The program must end as interrupted; its messages must not mention a step.
Outcome check_interrupted(Program& program, int number, Ends& ends, const std::string& what) {
  const bool ended = ends.of(program, what);
  CHECK(ended);
  if (!ended) ::kill(program.id(), SIGKILL);
  Outcome outcome = program.wait();
  INFO("stderr: " << outcome.err);
  CHECK(outcome.signal == 0);
  CHECK(outcome.code == 128 + number);
  CHECK(outcome.err.find("stopping") != std::string::npos);
  CHECK(outcome.err.find("step") == std::string::npos);
  CHECK(outcome.err.find("error") == std::string::npos);
  return outcome;
}

Outcome interrupt(Program& program, int number, Ends& ends, const std::string& what) {
  ::kill(program.id(), number);
  return check_interrupted(program, number, ends, what);
}

bool has_checkpoint(const TemporaryFolder& temp) { return fs::exists(temp / "run/checkpoints/last/manifest.json"); }

std::int64_t saved_step(const TemporaryFolder& temp) {
  return nlohmann::json::parse(read_text(temp / "run/checkpoints/last/state.json"))["step"];
}

// A run that ends before its first step may still write its initial weights.
bool has_saved_a_step(const TemporaryFolder& temp) { return has_checkpoint(temp) && saved_step(temp) > 0; }

std::string weights_of(const TemporaryFolder& temp, const std::string& run) {
  return nlohmann::json::parse(read_text(temp / (run + "/summary.json")))["weights_sha256"];
}

std::string jpeg(int width, int height) {
  std::string pixels(static_cast<std::size_t>(width) * static_cast<std::size_t>(height), '\0');
  for (std::size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<char>((i * 2654435761u) >> 13);
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  const tjhandle compressor = tjInitCompress();
  tjCompress2(compressor, reinterpret_cast<const unsigned char*>(pixels.data()), width, 0, height, TJPF_GRAY, &bytes,
              &size, TJSAMP_GRAY, 95, 0);
  const std::string out(reinterpret_cast<const char*>(bytes), size);
  tjFree(bytes);
  tjDestroy(compressor);
  return out;
}

// 48 training images. Before the first batch dp_train reads some of them, but not the last two, b/x0.jpg and b/x1.jpg.
void write_images(const std::string& folder) {
  for (const char* name : {"/train/a", "/train/b", "/val/a", "/val/b"}) fs::create_directories(folder + name);
  const std::string image = jpeg(64, 64);
  for (int i = 0; i < 40; ++i) write_text(folder + "/train/a/" + std::to_string(i) + ".jpg", image);
  for (int i = 0; i < 6; ++i) write_text(folder + "/train/b/" + std::to_string(i) + ".jpg", image);
  for (const char* name : {"/train/b/x0.jpg", "/train/b/x1.jpg", "/val/a/0.jpg", "/val/b/0.jpg"})
    write_text(folder + name, image);
}

const Words kImages{"--dataset",    "imagefolder",  "--data-path", ".", "-j",           "1",
                    "--no-shuffle", "--no-augment", "-p",          "1", "--output-dir", "run"};

int ranks_of(const Words& engine) { return engine == kDdp ? 2 : 0; }

// The call that DP_STANDS_AT names blocks (standing_calls.cpp).
Words standing(const TemporaryFolder& temp, const std::string& at) {
  return {"LD_PRELOAD=" DP_STANDING_CALLS, "DP_STANDS_AT=" + at, "DP_STANDS_FILE=" + temp / "stands"};
}

void wait_until_it_stands(const TemporaryFolder& temp) {
  CHECK(becomes([&] { return fs::exists(temp / "stands"); }));
}

}  // namespace

TEST_CASE("signals: subcommands and --print-plan end, even if nobody reads their output") {
  Ends ends;
  const TemporaryFolder temp;
  write_tiny_mnist(temp.path());
  const std::vector<Words> commands{{"env"},
                                    {"--list-models"},
                                    {"--model", "resnet18", "--dataset", "cifar10", "--cpu", "2", "estimate-memory"},
                                    kTiny + kDp + Words{"--print-plan"},
                                    kTiny + kDdp + Words{"--print-plan"}};
  for (const int number : {SIGINT, SIGTERM}) {
    std::vector<Program> programs;
    for (const Words& command : commands) programs.emplace_back(command, temp.path(), Words{}, kFullOutput);
    for (std::size_t i = 0; i < programs.size(); ++i)
      programs[i].wait_until_signals_are_handled(i + 1 == programs.size() ? 2 : 0);  // the last one has ranks
    wait_for_seconds(1);
    for (const Program& program : programs) ::kill(program.id(), number);
    for (std::size_t i = 0; i < programs.size(); ++i) {
      const std::string what = commands[i].front() + " ... " + commands[i].back() + ", command " + std::to_string(i);
      INFO(what << ", signal " << number);
      check_interrupted(programs[i], number, ends, what);
    }
  }
}

// The signal arrives while the first primitive is created, and then planning goes on.
TEST_CASE("signals: planning ends, with and without --print-plan") {
  Ends ends;
  for (const int number : {SIGINT, SIGTERM})
    for (const Words& engine : {kDp, kDdp})
      for (const Words& what : {Words{"--print-plan"}, Words{"--output-dir", "run"}}) {
        INFO(engine.front() << ' ' << what.front() << ", signal " << number);
        const TemporaryFolder temp;
        write_tiny_mnist(temp.path());
        const Words large{"--dataset", "mnist", "--data-path", ".", "--model", "resnet18", "-b", "64"};
        Program program(large + engine + what, temp.path(), standing(temp, "primitive:"));
        program.wait_until_signals_are_handled(ranks_of(engine));
        wait_until_it_stands(temp);
        ::kill(program.id(), number);
        CHECK(program.wait_for_error("stopping").find("stopping") != std::string::npos);
        write_text(temp / "stands.open", "");
        check_interrupted(program, number, ends, "planning " + engine.front() + " " + what.front());
        CHECK_FALSE(has_saved_a_step(temp));
      }
}

TEST_CASE("signals: an evaluation ends in the middle of a batch") {
  Ends ends;
  const TemporaryFolder temp;
  write_tiny_mnist(temp.path());
  REQUIRE(run_dp_train(kTiny + kDp + Words{"--max-steps", "1", "--output-dir", "trained"}, temp.path()).code == 0);
  for (const int number : {SIGINT, SIGTERM}) {
    for (const Words& engine : {kDp, kDdp}) {
      INFO(engine.front() << ", signal " << number);
      const StallGate gate(temp / ("gate" + std::to_string(number) + engine.back()));
      Program program(kTiny + engine + Words{"-e", "--resume", "trained"}, temp.path(),
                      {"DP_FAIL=stall:forward:600000ms", gate.variable()});
      for (const int replica : {0, 1}) gate.wait_for(replica);
      interrupt(program, number, ends, "evaluation " + engine.front());
    }
  }
}

// The calls that open the last two images never return.
TEST_CASE("signals: a wait for the first batch ends and saves no step") {
  Ends ends;
  for (const Words& engine : {kDp, kDdp}) {
    INFO(engine.front());
    const TemporaryFolder temp;
    write_images(temp.path());
    Program program(kImages + engine + Words{"-b", "48", "--model", "mlp"}, temp.path(),
                    standing(temp, "open:/train/b/x"));
    wait_until_it_stands(temp);
    REQUIRE(program.wait_for("run folder").find("run folder") != std::string::npos);  // planning is done
    wait_for_seconds(0.3);                                                            // it begins to wait
    interrupt(program, engine == kDp ? SIGINT : SIGTERM, ends, "first batch " + engine.front());
    CHECK_FALSE(has_saved_a_step(temp));
  }
}

// The third batch never arrives. A rank begins a step when it has the batch after that step, too.
TEST_CASE("signals: a wait for data in the middle of a run ends with a checkpoint of the finished steps") {
  Ends ends;
  for (const Words& engine : {kDp, kDdp}) {
    INFO(engine.front());
    const TemporaryFolder temp;
    write_images(temp.path());
    Program program(kImages + engine + Words{"-b", "16", "--model", "mlp", "--momentum", "0"}, temp.path(),
                    standing(temp, "open:/train/b/x"));
    wait_until_it_stands(temp);
    const std::string last = engine == kDp ? "[1/3]" : "[0/3]";
    REQUIRE(program.wait_for(last).find(last) != std::string::npos);
    wait_for_seconds(0.3);
    const Outcome outcome = interrupt(program, SIGTERM, ends, "data " + engine.front());
    CHECK(outcome.err.find("stopping after a checkpoint is written") != std::string::npos);
    REQUIRE(has_checkpoint(temp));
    CHECK(saved_step(temp) == (engine == kDp ? 2 : 1));
    CHECK(saved_step(temp) == nlohmann::json::parse(read_text(temp / "run/summary.json")).at("steps"));
  }
}

TEST_CASE("signals: a training step is finished, and the resumed run reaches the same bits") {
  for (const Words& engine : {kDp, kDdp})
    for (const char* stall :
         {"stall:backward:dev0:step2:600000ms", "stall:forward:dev0:step4:600000ms"}) {  // step 4 is an evaluation
      INFO(engine.front() << ' ' << stall);
      const TemporaryFolder temp;
      write_tiny_mnist(temp.path());
      const Words arguments = kTiny + engine + Words{"--epochs", "3", "-p", "1"};
      REQUIRE(run_dp_train(arguments + Words{"--output-dir", "whole"}, temp.path()).code == 0);
      const Words cut = arguments + Words{"--output-dir", "run", "--save-every", "0", "--resume", "auto"};
      const StallGate gate(temp / "gate");
      Program program(cut, temp.path(), {std::string("DP_FAIL=") + stall, gate.variable()});
      const bool evaluating = std::string(stall).find("step4") != std::string::npos;
      gate.wait_for();
      ::kill(program.id(), SIGTERM);
      program.wait_for_error("stopping after a checkpoint is written");
      gate.open();
      const Outcome outcome = program.wait();
      INFO(outcome.err);
      CHECK(outcome.code == 128 + SIGTERM);
      const std::size_t said = outcome.err.find("stopping after a checkpoint is written");
      CHECK(said != std::string::npos);
      CHECK(outcome.err.find("stopping", said + 1) == std::string::npos);  // one process says it
      REQUIRE(has_checkpoint(temp));
      CHECK(saved_step(temp) >= (evaluating ? 4 : 3));
      CHECK(saved_step(temp) <= 5);
      const Outcome resumed = run_dp_train(cut, temp.path());
      INFO(resumed.err);
      REQUIRE(resumed.code == 0);
      CHECK(weights_of(temp, "run") == weights_of(temp, "whole"));
    }
}

// A rank waits up to ten seconds for a report that another rank has left.
TEST_CASE("signals: a rank that fails on its own after a signal reports its error") {
  const TemporaryFolder temp;
  write_tiny_mnist(temp.path());
  const StallGate gate(temp / "gate");
  Program program(kTiny + kDdp + Words{"--output-dir", "run", "-p", "1"}, temp.path(),
                  {"DP_FAIL=stall:backward:dev0:step2:600000ms,throw:update:dev0:step2", gate.variable()});
  gate.wait_for();
  ::kill(program.id(), SIGTERM);
  program.wait_for_error("stopping after a checkpoint is written");
  gate.open();
  const Outcome outcome = program.wait();
  INFO(outcome.err);
  CHECK(outcome.code == 4);
  CHECK(outcome.err.find("dp_train: error: rank ") != std::string::npos);
}

TEST_CASE("signals: a hang-up and a scheduler's warnings save the finished steps, and a repeat ends at once") {
  for (const Words& engine : {kDp, kDdp})
    for (const int number : {SIGHUP, SIGUSR1, SIGUSR2}) {
      INFO(engine.front() << ", signal " << number);
      const TemporaryFolder temp;
      write_tiny_mnist(temp.path());
      const StallGate gate(temp / "gate");
      Program program(kTiny + engine + Words{"--output-dir", "run", "-p", "1"}, temp.path(),
                      {"DP_FAIL=stall:forward:dev0:step2:600000ms", gate.variable()});
      gate.wait_for();
      const bool closes = number == SIGHUP;  // a session that closes may send both, here at the same moment
      if (closes) program.stop();
      ::kill(program.id(), number);
      if (closes) ::kill(program.id(), SIGTERM), ::kill(program.id(), SIGCONT);
      program.wait_for_error("stopping after a checkpoint is written");
      const bool again = number == SIGUSR2;
      if (again)
        becomes([&] {
          wait_for_seconds(0.5);
          ::kill(program.id(), number);
          return program.has_ended();
        });
      else
        gate.open();
      const Outcome outcome = program.wait();
      INFO(outcome.err);
      CHECK(outcome.code == 128 + number);
      CHECK(has_checkpoint(temp) == !again);
      if (!again) CHECK(saved_step(temp) >= 3);
    }
}

TEST_CASE("signals: a hang-up that nohup ignores changes nothing") {
  for (const Words& engine : {kDp, kDdp}) {
    const TemporaryFolder temp;
    write_tiny_mnist(temp.path());
    const StallGate gate(temp / "gate");
    Program program(kTiny + engine + Words{"--max-steps", "4", "--output-dir", "run"}, temp.path(),
                    {"DP_FAIL=stall:forward:dev0:step2:600000ms", gate.variable()},
                    {"/bin/sh", "-c", "trap '' HUP USR1; exec \"$@\"", "sh"});
    gate.wait_for();
    for (const int number : {SIGHUP, SIGUSR1}) ::kill(program.id(), number);
    gate.open();
    const Outcome outcome = program.wait();
    INFO(outcome.err);
    CHECK(outcome.code == 0);
    CHECK(outcome.err.find("stopping") == std::string::npos);
  }
}

TEST_CASE("signals: a second signal ends the program at once if it is another one or comes later") {
  for (const Words& engine : {kDp, kDdp})
    for (const bool another : {true, false}) {
      INFO(engine.front() << (another ? ": another" : ": later"));
      const TemporaryFolder temp;
      write_tiny_mnist(temp.path());
      const StallGate gate(temp / "gate");
      Program program(kTiny + engine + Words{"--output-dir", "run", "-p", "1"}, temp.path(),
                      {"DP_FAIL=stall:forward:dev0:step2:600000ms", gate.variable()});
      gate.wait_for();
      ::kill(program.id(), SIGTERM);
      CHECK(program.wait_for_error("a second signal exits at once").find("stopping") != std::string::npos);
      const int second = another ? SIGINT : SIGTERM;
      if (another) ::kill(program.id(), second);
      // An equal signal counts as a second one a second later, by a clock that runs while the program does.
      if (!another)
        becomes([&] {
          wait_for_seconds(0.5);
          ::kill(program.id(), second);
          return program.has_ended();
        });
      CHECK(program.ends_within(0.5));
      const Outcome outcome = program.wait();
      CHECK(outcome.code == 128 + second);
      CHECK_FALSE(has_checkpoint(temp));
    }
}
