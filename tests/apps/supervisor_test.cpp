// --max-restarts: what is restarted and what is not, signals, records, and the bits of an undisturbed run. --on-end.
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "apps/idx_files.h"
#include "apps/processes.h"
#include "apps/run_program.h"
#include "dp_train/supervisor.h"
#include "support/catch.h"
#include "support/free_port.h"
#include "support/patience.h"

namespace {

namespace fs = std::filesystem;
using namespace dp::test;
using Json = nlohmann::json;

const std::string kNoPause = "DP_RESTART_PAUSE=0";

// 12 steps. Each one is saved before the next begins.
const Words kRun{"--dataset",
                 "mnist",
                 "--data-path",
                 ".",
                 "--model",
                 "mlp",
                 "-b",
                 "16",
                 "--epochs",
                 "3",
                 "--save-every",
                 "1,1steps",
                 "--timeout",
                 "600",
                 "--no-eval",
                 "-p",
                 "1",
                 "--sync-checkpoints",
                 "--output-dir",
                 "run"};

Words supervised(const Words& engine, int restarts) {
  return kRun + engine + Words{"--max-restarts", std::to_string(restarts)};
}

// Replaces the values of options in `words`, and appends the other ones.
Words merged(Words words, const Words& more) {
  for (std::size_t i = 0; i < more.size(); i += 2) {
    const auto at = std::find(words.begin(), words.end(), more[i]);
    if (at == words.end())
      words.insert(words.end(), {more[i], more[i + 1]});
    else
      at[1] = more[i + 1];
  }
  return words;
}

Json record(const TemporaryFolder& temp, const std::string& file) { return Json::parse(read_text(temp / file)); }

Json failures_of(const TemporaryFolder& temp) {
  const Json all = record(temp, "run/env.json");
  return all.value("failures", Json::array());
}

std::int64_t saved_step(const TemporaryFolder& temp) { return record(temp, "run/checkpoints/last/state.json")["step"]; }

std::string undisturbed(const Words& arguments) {
  const TemporaryFolder temp;
  write_tiny_mnist(temp.path());
  const Outcome outcome = run_dp_train(arguments, temp.path());
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  return record(temp, "run/summary.json")["weights_sha256"];
}

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; ++at) ++found;
  return found;
}

pid_t only_child(const Program& program) {
  const std::vector<pid_t> children = children_of(program.id());
  REQUIRE(children.size() == 1);
  return children.front();
}

// The text of a block of code below a heading of docs/guide/long_runs.md.
std::string block_below(const std::string& heading) {
  const std::string page = read_text(DP_SOURCE "/docs/guide/long_runs.md");
  const std::size_t fence = page.find("```", page.find("\n## " + heading + "\n"));
  const std::size_t begin = page.find('\n', fence) + 1;
  return page.substr(begin, page.find("```", begin) - begin);
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

}  // namespace

TEST_CASE("restarts: crashes, failures and stalls may be mended, usage, data, NaN and requests to stop are not") {
  for (const int status : {1, 4, 6, 7, 128 + SIGSEGV, 128 + SIGABRT, 128 + SIGKILL, 128 + SIGBUS})
    CHECK(dp_train::may_restart(status));
  for (const int status : {0, 2, 3, 5, 127, 128 + SIGINT, 128 + SIGTERM, 128 + SIGHUP, 128 + SIGUSR1, 128 + SIGUSR2})
    CHECK_FALSE(dp_train::may_restart(status));
  std::vector<int> pauses;
  for (int restart = 1; restart <= 9; ++restart) pauses.push_back(dp_train::pause_before(restart, 1));
  CHECK(pauses == std::vector<int>{1, 2, 4, 8, 16, 32, 60, 60, 60});
}

TEST_CASE("restarts: a run that crashes in five ways ends with the bits of an undisturbed one, and records them") {
  const TemporaryFolder temp;
  write_tiny_mnist(temp.path());
  const Words arguments = merged(supervised(kDp, 1), {"--timeout", "2"});  // counts during the stall only
  const Outcome outcome =
      Program(arguments, temp.path(),
              {kNoPause, StallGate(temp / "gate").variable(),
               "DP_FAIL=segv:backward:dev0:step2:start0,abort:forward:dev1:step4:start1,kill:update:dev0:step5:start2,"
               "throw:backward:dev1:step7:start3,stall:reduce:dev0:step9:start4:600000ms"})
          .wait();
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  CHECK(record(temp, "run/summary.json")["weights_sha256"] == undisturbed(kRun + kDp));
  CHECK(record(temp, "run/env.json")["parts"].size() == 6);
  Json ends, steps;
  for (const Json& failure : failures_of(temp)) ends.push_back(failure["end"]), steps.push_back(failure["step"]);
  CHECK(ends == Json{"signal 11 (Segmentation fault)", "signal 6 (Aborted)", "signal 9 (Killed)", "exit status 4",
                     "exit status 6"});
  CHECK(steps == Json{2, 4, 5, 7, 9});
  CHECK(count(outcome.err, "restart 1 of 1 in 0 s, from step ") == 5);
  CHECK(run_dp_train({"status", "run"}, temp.path()).out.find("failed 5 times, last at 20") != std::string::npos);
  CHECK(read_text(temp / "run/report.html").find("failed 5 times") != std::string::npos);
}

TEST_CASE("restarts: all ranks restart after one has crashed or failed, or their launcher was killed") {
  const TemporaryFolder temp;
  write_tiny_mnist(temp.path());
  const StallGate gate(temp / "gate");
  Program program(supervised(kDdp, 1), temp.path(),
                  {kNoPause, gate.variable(),
                   "DP_FAIL=segv:backward:dev1:step2:start0,throw:backward:dev0:step4:start1,"
                   "stall:backward:dev0:step6:start2:600000ms"});
  gate.wait_for();
  ::kill(only_child(program), SIGKILL);
  const Outcome outcome = program.wait();
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  CHECK(record(temp, "run/summary.json")["weights_sha256"] == undisturbed(kRun + kDdp));
  Json ends;
  for (const Json& failure : failures_of(temp)) ends.push_back(failure["end"]);
  CHECK(ends == Json{"signal 11 (Segmentation fault)", "exit status 4", "signal 9 (Killed)"});
}

TEST_CASE("restarts: a run that failed before its first checkpoint begins again as it was started") {
  const TemporaryFolder temp;
  write_tiny_mnist(temp.path());
  REQUIRE(run_dp_train(kRun + kDp + Words{"--max-steps", "5"}, temp.path()).code == 0);
  for (const bool named : {true, false})
    for (const Words& start : {Words{}, Words{"--resume", "run"}}) {
      const std::string folder = named ? "new" + std::to_string(start.size()) : "runs";
      INFO(folder);
      Words arguments = supervised(kDp, 1) + Words{"--max-steps", "12"} + start;
      if (named || !start.empty())
        arguments = merged(arguments, {"--output-dir", folder});
      else
        arguments.erase(std::find(arguments.begin(), arguments.end(), "--output-dir"),
                        std::find(arguments.begin(), arguments.end(), "--output-dir") + 2);
      const std::string step = start.empty() ? "0" : "5";
      const Outcome outcome =
          Program(arguments, temp.path(), {kNoPause, "DP_FAIL=segv:backward:dev0:step" + step + ":start0"}).wait();
      INFO(outcome.err);
      REQUIRE(outcome.code == 0);
      std::vector<fs::path> runs{fs::path(temp.path()) / folder};
      if (!named && start.empty()) runs = {fs::directory_iterator(temp / "runs")->path()};
      const Json summary = Json::parse(read_text(runs.front() / "summary.json"));
      CHECK(summary["steps"] == 12);
      CHECK(Json::parse(read_text(runs.front() / "env.json"))["failures"].size() == 1);
      fs::remove_all(temp / "runs");
    }
}

TEST_CASE("restarts: none after a usage error, bad data, a NaN or success, nor for what trains nothing") {
  struct Case {
    int code;
    Words engine, more, variables;
  };
  for (const Case& one : {Case{2, kDp, {"--cpu", "300"}, {}}, Case{2, kDp, {"--init", "a", "--resume", "b"}, {}},
                          Case{3, kDp, {"--data-path", "nowhere"}, {}}, Case{5, kDp, {}, {"DP_FAIL=nan:forward:step2"}},
                          Case{0, kDp, {"--max-steps", "2"}, {}}, Case{2, kDdp, {}, {"WORLD_SIZE=2", "RANK=0"}},
                          Case{2, kDdp, {"--nnodes", "2", "--master-addr", "127.0.0.1"}, {"DP_TOKEN=x"}},
                          Case{2, kDp + Words{"--evaluate"}, {}, {}}}) {
    const TemporaryFolder temp;
    write_tiny_mnist(temp.path());
    const Outcome outcome =
        Program(merged(supervised(one.engine, 3), one.more), temp.path(), Words{kNoPause} + one.variables).wait();
    INFO(outcome.err);
    CHECK(outcome.code == one.code);
    CHECK(outcome.err.find("restart 1") == std::string::npos);
    CHECK(count(outcome.err, "\n") == (one.code != 0));
  }
}

TEST_CASE("restarts: without a new checkpoint their number is limited, and the status is that of the last failure") {
  for (const std::string action : {"throw", "segv"}) {
    const TemporaryFolder temp;
    write_tiny_mnist(temp.path());
    const Outcome outcome =
        Program(supervised(kDp, 2), temp.path(), {kNoPause, "DP_FAIL=" + action + ":forward:dev0:step2"}).wait();
    INFO(outcome.err);
    CHECK(outcome.code == (action == "throw" ? 4 : 128 + SIGSEGV));
    CHECK(failures_of(temp).size() == 3);
    CHECK(count(outcome.err, "restart 2 of 2 in 0 s, from step 2") == 1);
    CHECK(outcome.err.find("it is not restarted: no new checkpoint since the last 2 restarts") != std::string::npos);
  }
}

TEST_CASE("restarts: an interrupt of the group or of the first process saves, and ends the run with its status") {
  for (const Words& engine : {kDp, kDdp})
    for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
      INFO(engine.front() << ", signal " << number);
      const TemporaryFolder temp;
      write_tiny_mnist(temp.path());
      const StallGate gate(temp / "gate");
      Program program(supervised(engine, 3), temp.path(),
                      {kNoPause, "DP_FAIL=stall:backward:dev0:step3:600000ms", gate.variable()}, {},
                      Program::Group::own);
      gate.wait_for();
      ::kill(number == SIGTERM ? program.id() : -program.id(), number);
      program.wait_for_error("stopping after a checkpoint is written");
      gate.open();
      const Outcome outcome = program.wait();
      INFO(outcome.err);
      CHECK(outcome.code == 128 + number);
      CHECK(count(outcome.err, "stopping") == 1);
      CHECK(outcome.err.find("restart 1") == std::string::npos);
      CHECK(saved_step(temp) >= 4);
    }
}

TEST_CASE("restarts: a signal ends the pause before a restart, and a second one ends child and parent at once") {
  const TemporaryFolder temp;
  write_tiny_mnist(temp.path());
  Program pausing(supervised(kDp, 3), temp.path(), {"DP_RESTART_PAUSE=60", "DP_FAIL=throw:forward:dev0:step2"});
  CHECK(pausing.wait_for_error("restart 1 of 3 in 60 s").find("in 60 s, from step 2") != std::string::npos);
  ::kill(pausing.id(), SIGTERM);
  CHECK(pausing.wait().code == 128 + SIGTERM);

  const StallGate gate(temp / "gate");
  Program program(supervised(kDp, 3) + Words{"--resume", "auto"}, temp.path(),
                  {"DP_FAIL=stall:backward:dev0:step3:600000ms", gate.variable()});
  gate.wait_for();
  const pid_t child = only_child(program);
  ::kill(program.id(), SIGINT);
  program.wait_for_error("stopping after a checkpoint is written");
  ::kill(program.id(), SIGTERM);
  CHECK(program.wait().code == 128 + SIGTERM);
  CHECK(becomes([&] { return state_of(child) == '-' || state_of(child) == 'Z'; }));
}

TEST_CASE("restarts: the child ends with a parent that is killed") {
  for (const Words& engine : {kDp, kDdp}) {
    const TemporaryFolder temp;
    write_tiny_mnist(temp.path());
    const StallGate gate(temp / "gate");
    Program program(supervised(engine, 3), temp.path(),
                    {"DP_FAIL=stall:backward:dev0:step3:600000ms", gate.variable()});
    gate.wait_for();
    const pid_t child = only_child(program);
    std::vector<pid_t> all = children_of(child);
    CHECK(all.size() == (engine == kDdp ? 2 : 0));
    all.push_back(child);
    ::kill(program.id(), SIGKILL);
    CHECK(program.wait().signal == SIGKILL);
    for (const pid_t one : all) CHECK(becomes([&] { return state_of(one) == '-' || state_of(one) == 'Z'; }));
  }
}

namespace {

const std::string kAppend =
    "echo $DP_STATUS $DP_EXIT_CODE ${DP_STEP-none} ${DP_CHECKPOINT_STEP-none} ${DP_RESTARTS-alone} >> ended";

}  // namespace

TEST_CASE("on end: the command runs once, for every end of a run") {
  struct Case {
    std::string ended;
    Words engine, more, variables;
  };
  for (const Case& one :
       {Case{"complete 0 12 12 alone\n", kDp, {}, {}},
        Case{"failed 3 none none alone\n", kDp, {"--data-path", "nowhere"}, {}},
        Case{"failed 4 3 3 alone\n", kDp, {}, {"DP_FAIL=throw:forward:dev0:step3"}},
        Case{"failed 137 ", kDdp, {}, {"DP_FAIL=kill:backward:dev1:step2"}},
        Case{"failed 139 5 5 alone\n",
             kDp,
             {"--max-restarts", "1"},
             {"DP_FAIL=segv:update:step2:start0,segv:update:step5:start1,segv:update:step5:start2"}},
        Case{"complete 0 12 12 alone\n", kDdp, {"--max-restarts", "1"}, {"DP_FAIL=segv:update:step2:start0"}}}) {
    const TemporaryFolder temp;
    write_tiny_mnist(temp.path());
    const Outcome outcome = Program(merged(kRun, one.more) + one.engine + Words{"--on-end", kAppend}, temp.path(),
                                    Words{kNoPause} + one.variables)
                                .wait();
    INFO(outcome.err);
    CHECK(read_text(temp / "ended").starts_with(one.ended));
    CHECK(count(read_text(temp / "ended"), "alone\n") == 1);
    CHECK(outcome.code == std::stoi(one.ended.substr(one.ended.find(' '))));
    CHECK(outcome.err.find("warning") == std::string::npos);
    CHECK((outcome.err.find("not restarted") != std::string::npos) == (one.ended.starts_with("failed 139")));
  }
}

TEST_CASE("on end: the command runs once after a signal, and is not recorded") {
  for (const Words& engine : {kDp, kDdp}) {
    const TemporaryFolder temp;
    write_tiny_mnist(temp.path());
    const StallGate gate(temp / "gate");
    Program program(kRun + engine + Words{"--on_end=: secret; " + kAppend}, temp.path(),
                    {"DP_FAIL=stall:backward:dev0:step3:600000ms", gate.variable()});
    gate.wait_for();
    ::kill(program.id(), SIGTERM);
    program.wait_for_error("stopping after a checkpoint is written");
    gate.open();
    const Outcome outcome = program.wait();
    INFO(outcome.err);
    CHECK(outcome.code == 128 + SIGTERM);
    CHECK(read_text(temp / "ended").starts_with("interrupted 143 "));
    for (const auto& file : fs::recursive_directory_iterator(temp / "run"))
      if (file.is_regular_file()) CHECK(read_text(file.path()).find("secret") == std::string::npos);
  }
}

TEST_CASE("on end: of ranks that another launcher starts, the first one runs the command") {
  const TemporaryFolder temp;
  write_tiny_mnist(temp.path());
  const Words arguments = kRun + kDdp + Words{"--on-end", kAppend};
  const std::string port = "MASTER_PORT=" + free_port();
  const auto rank = [&](const std::string& number) {
    return Words{"WORLD_SIZE=2", "RANK=" + number, "MASTER_ADDR=127.0.0.1", port, "DP_TOKEN=token"};
  };
  Program first(arguments, temp.path(), rank("0")), second(arguments, temp.path(), rank("1"));
  CHECK(second.wait().code == 0);
  CHECK(first.wait().code == 0);
  CHECK(read_text(temp / "ended") == "complete 0 12 12 alone\n");
}

TEST_CASE("on end: a command that fails or takes too long is a warning, and its processes end") {
  struct Case {
    std::string command, seconds, warning;
    int signal;
  };
  const std::string waits = "sleep 600 & echo $! > new; mv new child; wait";
  for (const Case& one : {Case{"exit 3", "600", "exit status 3", 0}, Case{"kill -9 $$", "600", "signal 9 (Killed)", 0},
                          Case{waits, "1", "ended after 1 s", 0}, Case{waits, "600", "ended by a signal", SIGINT}}) {
    const TemporaryFolder temp;
    write_tiny_mnist(temp.path());
    Program program(kRun + kDp + Words{"--on-end", one.command}, temp.path(), {"DP_ON_END_SECONDS=" + one.seconds}, {},
                    Program::Group::own);
    if (one.signal != 0) {
      CHECK(becomes([&] { return fs::exists(temp / "child"); }));
      ::kill(-program.id(), one.signal);
    }
    const Outcome outcome = program.wait();
    CHECK(outcome.code == 0);
    CHECK(outcome.err == "dp_train: warning: --on-end: " + one.warning + "\n");
    if (one.command != waits || !fs::exists(temp / "child")) continue;
    const pid_t child = std::stoi(read_text(temp / "child"));
    CHECK(becomes([&] { return state_of(child) == '-' || state_of(child) == 'Z'; }));
  }
}

TEST_CASE("long runs: the unit of the guide is valid") {
  if (!fs::exists("/usr/bin/systemd-analyze")) DP_SKIP("systemd-analyze is not installed");
  const TemporaryFolder temp;
  write_text(temp / "cifar.service", replaced(block_below("systemd"), "/usr/local/bin/dp_train", DP_TRAIN_PATH));
  const Outcome good = Program({}, temp.path(), {}, {"/bin/sh", "-c", "systemd-analyze verify ./cifar.service"}).wait();
  INFO(good.err);
  CHECK(good.code == 0);
  CHECK(good.err.find("cifar.service") == std::string::npos);
}

// srun is a shell that starts its program in a group of its own, as a job step.
TEST_CASE("long runs: the Slurm script of the guide saves before the time limit, queues the job again and continues") {
  const TemporaryFolder temp;
  write_tiny_mnist(temp.path());
  fs::create_directory(temp / "bin");
  write_text(temp / "bin/srun", "#!/bin/bash\nset -m\n\"$@\" &\necho $! > step.new && mv step.new step\nwait $!\n");
  write_text(temp / "bin/scontrol", "#!/bin/sh\necho \"$@\" >> queued\n");
  write_text(temp / "bin/dp_train", std::string("#!/bin/sh\nexec '" DP_TRAIN_PATH "' \"$@\"\n"));
  for (const auto& file : fs::directory_iterator(temp / "bin")) fs::permissions(file, fs::perms::owner_all);
  const std::string tiny =
      "--dataset mnist --data-path . --model mlp --cpu 2 --threads-per-replica 1 -b 16 --epochs 3 --no-eval";
  write_text(temp / "job.sh", replaced(replaced(block_below("Slurm"), "--model resnet18", tiny), "runs/cifar", "run"));
  const Words bash{"/bin/bash", "job.sh"};
  const std::string path = "PATH=" + temp / "bin" + ":/usr/bin:/bin";
  const StallGate gate(temp / "gate");
  Program first({}, temp.path(),
                {path, "SLURM_JOB_ID=7", "DP_FAIL=stall:backward:dev0:step3:600000ms", gate.variable()}, bash);
  gate.wait_for();
  ::kill(-std::stoi(read_text(temp / "step")), SIGUSR1);
  first.wait_for_error("stopping after a checkpoint is written");
  gate.open();
  const Outcome stopped = first.wait();
  INFO(stopped.err);
  CHECK(stopped.code == 128 + SIGUSR1);
  CHECK(read_text(temp / "queued") == "requeue 7\n");
  CHECK(saved_step(temp) >= 4);
  const Outcome continued = Program({}, temp.path(), {path, "SLURM_JOB_ID=7"}, bash).wait();
  INFO(continued.err);
  CHECK(continued.code == 0);
  CHECK(read_text(temp / "queued") == "requeue 7\n");
  CHECK(record(temp, "run/summary.json")["weights_sha256"] == undisturbed(kRun + kDp));
}

namespace {

// Crashes of five kinds in turn, at least one step apart. Checkpoints are written beside training.
void check_many_crashes(const Words& engine, int crashes) {
  const std::vector<std::string> kinds{"segv:backward:dev0", "kill:update:dev1", "throw:forward:dev0",
                                       "stall:reduce:dev1", "abort:scatter:dev0"};
  const TemporaryFolder temp;
  write_tiny_mnist(temp.path());
  std::string fail = "DP_FAIL=";
  for (int crash = 0; crash < crashes; ++crash) {
    const std::string& kind = kinds[static_cast<std::size_t>(crash) % kinds.size()];
    fail += (crash > 0 ? "," : "") + kind + ":step" + std::to_string(3 * crash + 1 + crash % 3) + ":start" +
            std::to_string(crash) + (kind.starts_with("stall") ? ":600000ms" : "");
  }
  Words arguments = kRun + engine;
  std::erase(arguments, "--sync-checkpoints");
  arguments = merged(arguments, {"--epochs", std::to_string(crashes), "--timeout", "10"});
  const Outcome outcome = Program(arguments + Words{"--max-restarts", std::to_string(crashes)}, temp.path(),
                                  {kNoPause, StallGate(temp / "gate").variable(), fail})
                              .wait();
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  CHECK(record(temp, "run/summary.json")["steps"] == 4 * crashes);
  CHECK(record(temp, "run/summary.json")["weights_sha256"] == undisturbed(arguments));
  std::map<std::string, int> ends;
  for (const Json& failure : failures_of(temp)) ++ends[failure["end"].get<std::string>()];
  for (const auto& [end, times] : ends) WARN(end << ": " << times);
  CHECK(failures_of(temp).size() == static_cast<std::size_t>(crashes));
}

}  // namespace

TEST_CASE("restarts: fifty crashes of five kinds in one run change no bit", "[nightly]") {
  check_many_crashes(kDp, 50);
}

TEST_CASE("restarts: twenty crashes of five kinds with --engine ddp change no bit", "[nightly]") {
  check_many_crashes(kDdp, 20);
}
