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

// 8 small images, then many that each take at least a tenth of a second to decode.
void write_slow_images(const std::string& folder) {
  for (const char* name : {"/train/a", "/train/b", "/val/a", "/val/b"}) fs::create_directories(folder + name);
  const std::string small = jpeg(64, 64);
  for (int i = 0; i < 8; ++i) write_text(folder + "/train/a/" + std::to_string(i) + ".jpg", small);
  write_text(folder + "/val/a/0.jpg", small);
  write_text(folder + "/val/b/0.jpg", small);
  write_text(folder + "/train/b/first.jpg", jpeg(6000, 4000));
  for (int i = 0; i < 1015; ++i)
    fs::create_hard_link(folder + "/train/b/first.jpg", folder + "/train/b/" + std::to_string(i) + ".jpg");
}

const Words kImages{"--dataset",    "imagefolder",  "--data-path", ".", "-j",           "1",
                    "--no-shuffle", "--no-augment", "-p",          "1", "--output-dir", "run"};

int ranks_of(const Words& engine) { return engine == kDdp ? 2 : 0; }

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
  for (int run = 0; run < 2 || (run < 6 && !ends.in_time()); ++run) {  // more runs if other programs use the cores
    const int number = run % 2 == 0 ? SIGINT : SIGTERM;
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

TEST_CASE("signals: planning ends, with and without --print-plan") {
  Ends ends;
  const TemporaryFolder temp;
  write_tiny_mnist(temp.path());
  const Words large{"--dataset", "mnist", "--data-path", ".", "--model", "resnet18", "-b", "64"};
  for (int run = 0; run < 2 || (run < 6 && !ends.in_time()); ++run) {
    const int number = run % 2 == 0 ? SIGINT : SIGTERM;
    for (const Words& engine : {kDp, kDdp})
      for (const Words& what : {Words{"--print-plan"}, Words{"--output-dir", engine.front() + std::to_string(run)}}) {
        INFO(engine.front() << ' ' << what.front() << ", signal " << number);
        Program program(large + engine + what, temp.path());
        program.wait_until_signals_are_handled(ranks_of(engine));
        interrupt(program, number, ends, "planning " + engine.front() + " " + what.front());
      }
  }
}

TEST_CASE("signals: an evaluation ends in the middle of a batch") {
  Ends ends;
  const TemporaryFolder temp;
  write_tiny_mnist(temp.path());
  REQUIRE(run_dp_train(kTiny + kDp + Words{"--max-steps", "1", "--output-dir", "trained"}, temp.path()).code == 0);
  for (int run = 0; run < 2 || (run < 6 && !ends.in_time()); ++run) {
    const int number = run % 2 == 0 ? SIGINT : SIGTERM;
    for (const Words& engine : {kDp, kDdp}) {
      INFO(engine.front() << ", signal " << number);
      Program program(kTiny + engine + Words{"-e", "--resume", "trained"}, temp.path(),
                      {"DP_FAIL=stall:forward:60000ms"});
      program.wait_until_signals_are_handled(ranks_of(engine));
      wait_for_seconds(1);
      interrupt(program, number, ends, "evaluation " + engine.front());
    }
  }
}

TEST_CASE("signals: a wait for the first batch ends without a checkpoint") {
  Ends ends;
  for (int run = 0; run < 2 || (run < 6 && !ends.in_time()); ++run) {  // more runs if other programs use the cores
    const Words& engine = run % 2 == 0 ? kDp : kDdp;
    INFO(engine.front());
    const TemporaryFolder temp;
    for (const char* folder : {"/train/a/", "/train/b/", "/val/a/", "/val/b/"}) {
      fs::create_directories(temp.path() + folder);
      for (const char* file : {"0.jpg", "1.jpg"}) write_text(temp.path() + folder + file, jpeg(64, 64));
    }
    // The call that opens the first image of class b never returns.
    Program program(kImages + engine + Words{"-b", "4", "--model", "mlp"}, temp.path(),
                    {"LD_PRELOAD=" DP_STANDING_CALLS, "DP_STANDS_AT=open:/train/b/", "DP_STANDS_FILE=" + temp / "b"});
    CHECK(becomes([&] { return fs::exists(temp / "b"); }));
    interrupt(program, run % 2 == 0 ? SIGINT : SIGTERM, ends, "first batch " + engine.front());
    CHECK_FALSE(has_checkpoint(temp));
  }
}

// With -b 8 the first batch is ready at once, and the second takes seconds. Without momentum the checkpoint has 43 MiB,
// half the usual size.
TEST_CASE("signals: a wait for data in the middle of a run ends with a checkpoint of the finished steps") {
  Ends ends;
  const TemporaryFolder temp;
  write_slow_images(temp.path());
  for (int run = 0; run < 2 || (run < 6 && !ends.in_time()); ++run) {  // more runs if other programs use the cores
    const Words& engine = run % 2 == 0 ? kDp : kDdp;
    fs::remove_all(temp / "run");
    INFO(engine.front());
    const Words arguments = kImages + engine + Words{"--model", "resnet18", "-b", "8", "--momentum", "0"};
    Program program(arguments, temp.path());
    REQUIRE(program.wait_for("0/128]").find("0/128]") != std::string::npos);
    wait_for_seconds(0.3);
    const Outcome outcome = interrupt(program, SIGTERM, ends, "data " + engine.front());
    CHECK(outcome.err.find("stopping after a checkpoint is written") != std::string::npos);
    REQUIRE(has_checkpoint(temp));
    CHECK(saved_step(temp) >= 1);  // another batch may arrive before the signal does
    CHECK(saved_step(temp) < 128);
    CHECK(saved_step(temp) == nlohmann::json::parse(read_text(temp / "run/summary.json")).at("steps"));
  }
}

TEST_CASE("signals: a training step is finished, and the resumed run reaches the same bits") {
  for (const Words& engine : {kDp, kDdp})
    for (const char* stall :
         {"stall:backward:dev0:step2:60000ms", "stall:forward:dev0:step4:60000ms"}) {  // step 4 is an evaluation
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

TEST_CASE("signals: a hang-up and a scheduler's warnings save the finished steps, and a repeat ends at once") {
  for (const Words& engine : {kDp, kDdp})
    for (const int number : {SIGHUP, SIGUSR1, SIGUSR2}) {
      INFO(engine.front() << ", signal " << number);
      const TemporaryFolder temp;
      write_tiny_mnist(temp.path());
      const StallGate gate(temp / "gate");
      Program program(kTiny + engine + Words{"--output-dir", "run", "-p", "1"}, temp.path(),
                      {"DP_FAIL=stall:forward:dev0:step2:60000ms", gate.variable()});
      gate.wait_for();
      ::kill(program.id(), number);
      if (number == SIGHUP) ::kill(program.id(), SIGTERM);  // a session that closes may send both
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
                    {"DP_FAIL=stall:forward:dev0:step2:60000ms", gate.variable()},
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
                      {"DP_FAIL=stall:forward:dev0:step2:60000ms", gate.variable()});
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
