// dp_train with a pipeline: resumed on other layouts, interrupted within a step, estimated.
#include <signal.h>

#include <nlohmann/json.hpp>

#include "apps/idx_files.h"
#include "apps/run_program.h"
#include "support/catch.h"
#include "support/temporary_folder.h"

namespace {

using namespace dp::test;

Words words(const std::string& folder, int devices, int stages) {
  return {"--dataset",
          "mnist",
          "--data-path",
          ".",
          "--model",
          "mnist_convnet",
          "-b",
          "16",
          "--max-steps",
          "6",
          "--epochs",
          "10",
          "--save-every",
          "1,2steps",
          "--logical-shards",
          "4",
          "--lr-scheduler",
          "constant",
          "--output-dir",
          folder,
          "--cpu",
          std::to_string(devices),
          "--pipeline-stages",
          std::to_string(stages)};
}

std::string weights_of(const TemporaryFolder& temp, const std::string& run) {
  return nlohmann::json::parse(read_text(temp / (run + "/summary.json")))["weights_sha256"];
}

}  // namespace

TEST_CASE("a run with a pipeline goes on with other replicas and stages, to the same bits", "[processes]") {
  const TemporaryFolder temp;
  write_tiny_mnist(temp.path());
  REQUIRE(run_dp_train(words("whole", 1, 1), temp.path()).code == 0);
  int stop = 2;
  for (const auto& [devices, stages] : {std::pair(4, 4), {4, 2}, {4, 1}}) {
    Words parts = words("parts", devices, stages) + Words{"--resume", "auto"};
    parts[9] = std::to_string(stop);
    const Outcome outcome = run_dp_train(parts, temp.path());
    INFO(outcome.err);
    REQUIRE(outcome.code == 0);
    CHECK((outcome.out.find("pipeline: ") != std::string::npos) == (stages > 1));
    stop += 2;
  }
  CHECK(weights_of(temp, "parts") == weights_of(temp, "whole"));
}

TEST_CASE("SIGINT while a stage warms up, works steadily or cools down saves the finished step", "[processes]") {
  const TemporaryFolder temp;
  write_tiny_mnist(temp.path());
  REQUIRE(run_dp_train(words("whole", 2, 2), temp.path()).code == 0);
  for (const char* place : {"forward:stage1:micro0", "backward:stage0:micro1", "backward:stage0:micro3"}) {
    const std::string run = std::string(place).substr(0, 8) + place[std::string(place).size() - 1];
    const StallGate gate(temp / (run + "-gate"));
    Program program(words(run, 2, 2) + Words{"-p", "1"}, temp.path(),
                    {"DP_FAIL=stall:" + std::string(place) + ":step2:600000ms", gate.variable()});
    gate.wait_for();
    ::kill(program.id(), SIGINT);
    program.wait_for_error("stopping");
    gate.open();
    const Outcome outcome = program.wait();
    INFO(place << "\n" << outcome.out << outcome.err);
    CHECK(outcome.code == 130);
    const auto state = nlohmann::json::parse(read_text(temp / (run + "/checkpoints/last/state.json")));
    CHECK(state["step"].get<int>() >= 2);
    CHECK(state["step"].get<int>() <= 3);
    CHECK(run_dp_train(words(run, 2, 2) + Words{"--resume", "auto"}, temp.path()).code == 0);
    CHECK(weights_of(temp, run) == weights_of(temp, "whole"));
  }
}

TEST_CASE("the memory estimate and the plan of a pipeline show its stages") {
  const TemporaryFolder temp;
  write_tiny_mnist(temp.path());
  Words all = words("none", 4, 2);
  all.insert(all.begin(), "estimate-memory");
  const Outcome estimate = run_dp_train(all, temp.path());
  CHECK(estimate.code == 0);
  for (const char* text : {"MiB per stage of a replica", "\n    0.0 ", "\n    0.1 ", "\n    1.0 ", "\n    1.1 "})
    CHECK_THAT(estimate.out, Catch::Contains(text));
  const Outcome plan = run_dp_train(words("none", 2, 2) + Words{"--print-plan"}, temp.path());
  CHECK(plan.code == 0);
  CHECK_THAT(plan.out, Catch::Contains("pipeline: 2 stages at ") && Catch::Contains("\nstage 1\nplan for 4 rows"));
}
