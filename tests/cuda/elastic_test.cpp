// --elastic: dp_train on simulated GPUs goes on without a GPU that is gone.
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "apps/idx_files.h"
#include "apps/processes.h"
#include "apps/run_program.h"
#include "cuda/simulated_program.h"
#include "support/catch.h"

namespace {

using namespace dp::test;
using Json = nlohmann::json;

const Words kRun{"--dataset",
                 "mnist",
                 "--data-path",
                 ".",
                 "--model",
                 "mlp",
                 "-b",
                 "24",
                 "--drop-last",
                 "--epochs",
                 "3",
                 "--no-eval",
                 "--timeout",
                 "600",
                 "-p",
                 "1",
                 "--save-every",
                 "1,1steps",
                 "--graphs",
                 "never",
                 "--no-autotune",
                 "--sync-checkpoints",
                 "--output-dir",
                 "run"};

std::string uuid(int number) { return "GPU-0" + std::to_string(number + 1) + "000000-0000-0000-0000-000000000000"; }

Json record(const TemporaryFolder& temp, const std::string& file) { return Json::parse(read_text(temp / file)); }

// The process is killed in step 3, and GPU 1 is gone when it is restarted.
Outcome lose_gpu_1(const TemporaryFolder& temp, const Words& arguments) {
  write_tiny_mnist(temp.path());
  const StallGate gate(temp / "gate");
  std::vector<std::string> environment = simulated(temp);
  environment.insert(environment.end(), {gate.variable(), "DP_RESTART_PAUSE=0", "DP_SIMULATED_LOST=" + temp / "lost",
                                         "DP_FAIL=stall:forward:dev0:step3:start0:600000ms"});
  Program program(kRun + arguments + Words{"--max-restarts", "1"}, temp.path(), environment);
  gate.wait_for(0);
  std::ofstream(temp / "lost") << 1;
  const std::vector<pid_t> children = children_of(program.id());
  REQUIRE(children.size() == 1);
  ::kill(children.front(), SIGKILL);
  return program.wait();
}

std::string undisturbed(const Words& arguments) {
  const TemporaryFolder temp;
  write_tiny_mnist(temp.path());
  const Outcome outcome = Program(kRun + arguments, temp.path(), simulated(temp)).wait();
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  return record(temp, "run/summary.json")["weights_sha256"];
}

}  // namespace

TEST_CASE("elastic: a run continues without a lost GPU and ends with the same bits") {
  struct Case {
    Words arguments;
    std::vector<std::string> gpus;
    std::string notice;
  };
  for (const Case& some :
       {Case{{"--gpus", "all", "--logical-shards", "12"}, {uuid(0), uuid(2), uuid(3)}, ""},
        Case{{"--num-gpus", "4", "--logical-shards", "4"}, {uuid(0), uuid(2)}, "2 of 3 working GPUs are used"},
        Case{{"--gpus", "3,1", "--logical-shards", "2"}, {uuid(3)}, ""}}) {
    const TemporaryFolder temp;
    const Outcome outcome = lose_gpu_1(temp, some.arguments + Words{"--elastic"});
    INFO(outcome.out << outcome.err);
    REQUIRE(outcome.code == 0);
    CHECK(outcome.err.find("warning: " + uuid(1) + " is left out: it cannot train: exit status 4") !=
          std::string::npos);
    CHECK(outcome.out.find(some.notice) != std::string::npos);
    const Json parts = record(temp, "run/env.json")["parts"];
    REQUIRE(parts.size() == 2);
    CHECK(parts[1]["gpus"] == Json(some.gpus));
    CHECK(parts[1]["devices"].size() == some.gpus.size());
    CHECK(record(temp, "run/summary.json")["weights_sha256"] == undisturbed(some.arguments));
  }
}

TEST_CASE("elastic: a run ends if its layout needs the lost GPU, or without the option") {
  const TemporaryFolder pipeline, fixed;
  const Outcome few = lose_gpu_1(pipeline, {"--gpus", "0,1", "--pipeline-stages", "2", "--elastic"});
  INFO(few.err);
  CHECK(few.code == 4);
  CHECK(few.err.find("1 GPU works, fewer than --pipeline-stages allows") != std::string::npos);
  const Outcome gone = lose_gpu_1(fixed, {"--gpus", "0-3"});
  INFO(gone.err);
  CHECK(gone.code == 2);
  CHECK(record(fixed, "run/env.json")["parts"].size() == 1);
}
