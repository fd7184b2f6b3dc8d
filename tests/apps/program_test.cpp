// dp_train from a user's point of view.
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>
#include <vector>

#include "apps/idx_files.h"
#include "apps/run_program.h"
#include "support/catch.h"
#include "support/patience.h"

namespace {

namespace fs = std::filesystem;
using namespace dp::test;

std::vector<std::string> tiny(std::vector<std::string> more) {
  const std::vector<std::string> common{"--dataset",      "mnist", "--data-path",           ".", "--model", "mlp",
                                        "--cpu",          "2",     "--threads-per-replica", "1", "-b",      "16",
                                        "--deterministic"};
  more.insert(more.begin(), common.begin(), common.end());
  return more;
}

TEST_CASE("help, version and the list of models are printed") {
  const TemporaryFolder temp;
  const Outcome help = run_dp_train({"--help"}, temp.path());
  CHECK(help.code == 0);
  for (const char* text : {"Devices:", "Training:", "--batch-size", "--test-only", "--reduce-dtype", "Exit codes"})
    CHECK(help.out.find(text) != std::string::npos);
  const Outcome version = run_dp_train({"--version"}, temp.path());
  CHECK(version.code == 0);
  CHECK(version.out.starts_with("dp_train "));
  const Outcome models = run_dp_train({"--list-models"}, temp.path());
  CHECK(models.code == 0);
  CHECK(models.out.find("mnist_convnet") != std::string::npos);
  CHECK(fs::is_empty(temp.path()));
}

TEST_CASE("without a GPU and a device flag two CPU replicas train, and the output names them") {
  const TemporaryFolder temp;
  write_tiny_mnist(temp.path());
  const Outcome run =
      run_dp_train({"--dataset", "mnist", "--data-path", ".", "--model", "mlp", "--epochs", "1", "--summary", "s.json"},
                   temp.path());
  INFO(run.err);
  REQUIRE(run.code == 0);
  CHECK(run.out.find("2 CPU replicas") != std::string::npos);
  CHECK(run.out.find("Test: Acc@1 ") != std::string::npos);
  CHECK(run.out.find("run folder runs/") != std::string::npos);
  CHECK(run.err.empty());
  const auto summary = nlohmann::json::parse(read_text(temp / "s.json"));
  CHECK(summary["devices"].size() == 2);
  CHECK(summary["steps"] == 1);
  CHECK(summary["communicator"] == "host");
  CHECK(summary["communicator_reason"] == "all replicas are in one process and share its memory");
  CHECK(summary["graphs"] == "none");
  CHECK(summary["graphs_reason"] == "only GPUs have CUDA graphs");
  CHECK_THAT(run.out, Catch::Contains("comm host: all replicas are in one process and share its memory\n"
                                      "graphs none: only GPUs have CUDA graphs\n"));
  CHECK(fs::exists(temp / summary["checkpoint"].get<std::string>()));
  for (const char* name : {"config.toml", "metrics.jsonl", "summary.json", "checkpoints/best"})
    CHECK(fs::exists(fs::path(temp / summary["checkpoint"].get<std::string>()).parent_path().parent_path() / name));
}

TEST_CASE("graphs are turned off by --no-graphs or --graphs never, and config.toml records it") {
  const TemporaryFolder temp;
  write_tiny_mnist(temp.path());
  for (const std::vector<std::string>& flags : {std::vector<std::string>{"--no-graphs"}, {"--graphs", "never"}}) {
    std::vector<std::string> words{"--max-steps", "1", "--output-dir", "run" + std::to_string(flags.size()) + flags[0]};
    words.insert(words.end(), flags.begin(), flags.end());
    CHECK(run_dp_train(tiny(words), temp.path()).code == 0);
    CHECK_THAT(read_text(temp / words[3] + "/config.toml"), Catch::Contains("\ngraphs = \"never\"\n"));
  }
}

TEST_CASE("an evaluation needs no option of the run's optimizer, in one process and in several") {
  const TemporaryFolder temp;
  write_tiny_mnist(temp.path());
  const std::vector<std::string> trained = tiny({"--optimizer", "adamw", "--max-steps", "2", "--output-dir", "run"});
  REQUIRE(run_dp_train(trained, temp.path()).code == 0);
  for (const char* engine : {"dp", "ddp"}) {
    const Outcome outcome = run_dp_train(tiny({"-e", "--resume", "run", "--engine", engine}), temp.path());
    INFO(engine << ": " << outcome.err);
    CHECK(outcome.code == 0);
    CHECK_THAT(outcome.out, Catch::Contains("Acc@1"));
  }
}

TEST_CASE("a bfloat16 reduction is printed in the plan and recorded in config.toml") {
  const TemporaryFolder temp;
  write_tiny_mnist(temp.path());
  const auto run = [&](std::vector<std::string> flags) {
    Outcome outcome = run_dp_train(tiny(std::move(flags)), temp.path());
    INFO(outcome.err);
    CHECK(outcome.code == 0);
    return outcome.out;
  };
  const std::string out = run({"--max-steps", "2", "--reduce-dtype", "bfloat16", "--output-dir", "low"});
  CHECK_THAT(out, Catch::Contains("reduce sharded in bfloat16, loss local"));
  CHECK_THAT(read_text(temp / "low/config.toml"), Catch::Contains("reduce-dtype = \"bfloat16\""));
  CHECK_THAT(run({"--print-plan", "--reduce-dtype", "bfloat16"}),
             Catch::Contains("gradients are rounded to bfloat16 for their sum"));
  CHECK_THAT(run({"--max-steps", "2", "--output-dir", "full"}), !Catch::Contains("bfloat16"));
  CHECK_THAT(read_text(temp / "full/config.toml"), Catch::Contains("reduce-dtype = \"float32\""));
  const Outcome one = run_dp_train({"--dataset", "mnist", "--data-path", ".", "--model", "mlp", "--cpu", "1",
                                    "--max-steps", "1", "--dry-run", "--reduce-dtype", "bfloat16"},
                                   temp.path());
  CHECK_THAT(one.out, Catch::Contains("reduce master (nothing to reduce)"));
}

TEST_CASE("estimate-memory prints each replica's memory and the largest batch, and writes nothing", "[processes]") {
  const TemporaryFolder temp;
  const Outcome run = run_dp_train({"estimate-memory", "--model", "resnet18", "--cpu", "2", "-b", "8"}, temp.path());
  INFO(run.err);
  REQUIRE(run.code == 0);
  for (const char* text : {"activations", "workspace", "largest global batch", "42.6"})
    CHECK(run.out.find(text) != std::string::npos);
  CHECK(fs::is_empty(temp.path()));
  // The image size selects the stem. A strided stem with a pool computes less at full resolution.
  const auto activations = [&](const std::string& input) {
    const Outcome synthetic = run_dp_train({"estimate-memory", "--dataset", "synthetic", "--input", input, "--classes",
                                            "1000", "--model", "resnet18", "--cpu", "1", "-b", "8"},
                                           temp.path());
    INFO(synthetic.err);
    REQUIRE(synthetic.code == 0);
    CHECK_THAT(synthetic.out, Catch::Contains("resnet18, synthetic, global batch 8"));
    CHECK_THAT(synthetic.out, Catch::Contains("    44.6 "));  // 11.7 M weights with 1000 classes
    std::istringstream words(synthetic.out.substr(synthetic.out.find("total\n") + 6));
    double value = 0;
    for (int column = 0; column < 7; ++column) words >> value;
    return value;
  };
  CHECK(activations("3,64,64") < activations("3,63,63"));
}

TEST_CASE("synthetic images have the requested shape and number") {
  const TemporaryFolder temp;
  const Outcome run =
      run_dp_train({"--dataset", "synthetic", "--input", "3,9,7", "--classes", "5", "--images", "61", "--model", "mlp",
                    "--cpu", "2", "-b", "20", "--output-dir", "run", "--summary", "s.json"},
                   temp.path());
  INFO(run.err);
  REQUIRE(run.code == 0);
  CHECK_THAT(run.out, Catch::Contains("Epoch: [0]  [3/4]"));
  const auto summary = nlohmann::json::parse(read_text(temp / "s.json"));
  CHECK(summary["dataset"] == "synthetic");
  CHECK(summary["steps"] == 4);
  CHECK(summary["top5"] == 100.0);  // there are five classes
}

TEST_CASE("the moving average is evaluated and saved, and --checkpoint-hist keeps the latest checkpoints") {
  const TemporaryFolder temp;
  write_tiny_mnist(temp.path());
  const Outcome run = run_dp_train(tiny({"--epochs", "4", "--model-ema", "--model-ema-decay", "0.5",
                                         "--checkpoint-hist", "2", "--output-dir", "run"}),
                                   temp.path());
  INFO(run.err);
  REQUIRE(run.code == 0);
  CHECK(run.out.find("EMA Test: Acc@1") != std::string::npos);
  CHECK(fs::exists(temp / "run/checkpoints/last/ema.safetensors"));
  for (const int step : {12, 16}) CHECK(fs::exists(temp / ("run/checkpoints/step-" + std::to_string(step))));
  for (const int step : {4, 8}) CHECK_FALSE(fs::exists(temp / ("run/checkpoints/step-" + std::to_string(step))));
  const Outcome evaluated = run_dp_train({"--dataset", "mnist", "--data-path", ".", "--model", "mlp", "--cpu", "1",
                                          "-e", "--init", "run/checkpoints/last/ema.safetensors"},
                                         temp.path());
  CHECK(evaluated.code == 0);
}

TEST_CASE("quiet prints the summary alone, --print-plan prints the plan, and --dry-run writes nothing") {
  const TemporaryFolder temp, data;
  write_tiny_mnist(data.path());
  const auto with_data = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = tiny(more);
    arguments[3] = data.path();
    return run_dp_train(arguments, temp.path());
  };
  const Outcome quiet = with_data({"--dry-run", "--quiet"});
  CHECK(quiet.code == 0);
  CHECK(quiet.out.find("Epoch:") == std::string::npos);
  CHECK(quiet.out.find("Acc@1") != std::string::npos);
  const Outcome plan = with_data({"--print-plan"});
  CHECK(plan.code == 0);
  CHECK(plan.out.find("fc1") != std::string::npos);
  CHECK(fs::is_empty(temp.path()));
}

TEST_CASE("an interrupt leaves a checkpoint, and resuming completes the run bit for bit") {
  for (const int number : {SIGINT, SIGTERM}) {
    const TemporaryFolder temp;
    write_tiny_mnist(temp.path());
    const Outcome whole =
        run_dp_train(tiny({"--epochs", "20", "--output-dir", "whole", "--quiet", "--save-every", "0"}), temp.path());
    REQUIRE(whole.code == 0);
    const std::vector<std::string> arguments =
        tiny({"--epochs", "20", "--output-dir", "cut", "--save-every", "0", "-p", "1", "--resume", "auto"});
    const StallGate gate(temp / "gate");
    Program program(arguments, temp.path(), {"DP_FAIL=stall:forward:dev0:step12:600000ms", gate.variable()});
    gate.wait_for();
    ::kill(program.id(), number);
    program.wait_for_error("stopping");
    gate.open();
    const Outcome cut = program.wait();
    CHECK(cut.code == 128 + number);
    CHECK(cut.signal == 0);
    CHECK(cut.out.find("--resume cut") != std::string::npos);
    CHECK(nlohmann::json::parse(read_text(temp / "cut/summary.json"))["interrupted"] == true);
    const Outcome resumed = run_dp_train(arguments, temp.path());
    INFO(resumed.err);
    REQUIRE(resumed.code == 0);
    const auto sha = [&](const char* run) {
      return nlohmann::json::parse(read_text(temp / (std::string(run) + "/summary.json")))["weights_sha256"];
    };
    CHECK(sha("cut") == sha("whole"));
  }
}

TEST_CASE("a run that is killed in the middle of a step, twice, resumes from its last checkpoint to the same bits") {
  const TemporaryFolder temp;
  write_tiny_mnist(temp.path());
  const auto run = [&](const char* folder) {  // what is saved at the kill is known only if the run waits for writes
    return tiny(
        {"--epochs", "5", "--save-every", "3steps", "--sync-checkpoints", "--output-dir", folder, "--resume", "auto"});
  };
  REQUIRE(run_dp_train(run("whole"), temp.path()).code == 0);
  const auto saved = [&] {
    return nlohmann::json::parse(read_text(temp / "killed/checkpoints/last/state.json"))["step"].get<int>();
  };
  struct Kill {
    std::string phase;
    int replica, step, saved;
  };
  for (const Kill& one : {Kill{"backward", 1, 8, 6}, Kill{"update", 0, 14, 12}}) {
    const StallGate gate(temp / ("gate-" + one.phase));
    const std::string place = one.phase + ":dev" + std::to_string(one.replica) + ":step" + std::to_string(one.step);
    Program program(run("killed"), temp.path(), {"DP_FAIL=stall:" + place + ":600000ms", gate.variable()});
    gate.wait_for(one.replica);
    ::kill(program.id(), SIGKILL);
    CHECK(program.wait().signal == SIGKILL);
    CHECK(saved() == one.saved);
    CHECK_FALSE(fs::exists(temp / "killed/summary.json"));
  }
  const Outcome resumed = run_dp_train(run("killed"), temp.path());
  INFO(resumed.err);
  REQUIRE(resumed.code == 0);
  const auto summary = [&](const char* folder) {
    return nlohmann::json::parse(read_text(temp / (std::string(folder) + "/summary.json")));
  };
  CHECK(summary("killed")["steps"] == 20);
  CHECK(summary("killed")["weights_sha256"] == summary("whole")["weights_sha256"]);
}

TEST_CASE("of runs that start in one folder at the same time, one trains and the others end with exit code 2",
          "[processes]") {
  const TemporaryFolder temp;
  write_tiny_mnist(temp.path());
  std::vector<Program> programs;
  for (int i = 0; i < 6; ++i)
    programs.emplace_back(tiny({"--epochs", "1000000", "--output-dir", "run", "--resume", "auto"}), temp.path());
  const auto running = [&] { return std::ranges::count_if(programs, [](auto& one) { return !one.has_ended(); }); };
  CHECK(becomes([&] { return running() == 1; }));
  std::vector<int> codes;
  for (Program& program : programs) {
    if (!program.has_ended()) {
      program.wait_for("Epoch: [0]");
      ::kill(program.id(), SIGINT);
    }
    codes.push_back(program.wait().code);
  }
  CHECK(std::ranges::count(codes, 2) == 5);
  CHECK(std::ranges::count(codes, 130) == 1);
}

// A single replica computes on the main thread, in code that moves the stack pointer. A signal handler there would
// overwrite the heap.
TEST_CASE("an interrupt at any moment of a run on one replica leaves a checkpoint") {
  for (int i = 0; i < 12; ++i) {
    const TemporaryFolder temp;
    Program program({"--cpu", "1", "--dataset", "synthetic", "--model", "mlp", "--epochs", "1000000", "--lr", "0", "-p",
                     "2000", "--output-dir", "run"},
                    temp.path());
    program.wait_for("Epoch: [0]");
    std::this_thread::sleep_for(std::chrono::milliseconds(50 + 7 * i));
    ::kill(program.id(), SIGINT);
    const Outcome outcome = program.wait();
    INFO(outcome.err);
    CHECK(outcome.code == 128 + SIGINT);
    CHECK(outcome.signal == 0);
    CHECK(fs::exists(temp / "run/checkpoints/last"));
  }
}

TEST_CASE("a closed stdout does not end a run") {
  const TemporaryFolder temp;
  write_tiny_mnist(temp.path());
  Program program(tiny({"--epochs", "2", "--output-dir", "run"}), temp.path());
  program.close_output();
  const Outcome outcome = program.wait();
  CHECK(outcome.code == 0);
  CHECK(fs::exists(temp / "run/summary.json"));
}

TEST_CASE("NaN ends the program with its own exit code") {
  const TemporaryFolder temp;
  write_tiny_mnist(temp.path());
  const Outcome outcome = Program(tiny({"--output-dir", "run", "--save-every", "1,1steps"}), temp.path(),
                                  {"DP_FAIL=nan:forward:dev1:step3"})
                              .wait();
  CHECK(outcome.code == 5);
  CHECK(outcome.err.find("run/checkpoints/last") != std::string::npos);
}

TEST_CASE("a run that skips every step ends with the exit code of NaN, and a run that skips some reports how many") {
  const TemporaryFolder temp;
  write_tiny_mnist(temp.path());
  const auto skipping = [&](const char* run, const char* failpoint) {
    return Program(tiny({"--output-dir", run, "--on-nonfinite", "skip"}), temp.path(), {failpoint}).wait();
  };
  const Outcome all = skipping("all", "DP_FAIL=nan:backward");
  CHECK(all.code == 5);
  CHECK(all.err.find("steps of epoch 0 were skipped") != std::string::npos);
  CHECK_FALSE(fs::exists(temp / "all/summary.json"));
  const Outcome some = skipping("some", "DP_FAIL=nan:backward:step1");
  CHECK(some.code == 0);
  CHECK(some.out.find("steps were skipped: a loss or gradient was not finite") != std::string::npos);
  CHECK(nlohmann::json::parse(read_text(temp / "some/summary.json"))["skipped_steps"] == 1);
}

TEST_CASE("evaluating a run gives the same result as its end") {
  const TemporaryFolder temp;
  write_tiny_mnist(temp.path());
  REQUIRE(run_dp_train(tiny({"--output-dir", "run", "--summary", "a.json"}), temp.path()).code == 0);
  const Outcome evaluated = run_dp_train(tiny({"-e", "--resume", "run", "--summary", "b.json"}), temp.path());
  INFO(evaluated.err);
  REQUIRE(evaluated.code == 0);
  const auto a = nlohmann::json::parse(read_text(temp / "a.json")),
             b = nlohmann::json::parse(read_text(temp / "b.json"));
  CHECK(a["top1"] == b["top1"]);
  CHECK(a["weights_sha256"] == b["weights_sha256"]);
  const Outcome from_file = run_dp_train(
      tiny({"-e", "--init", "run/checkpoints/last/model.safetensors", "--summary", "c.json"}), temp.path());
  CHECK(from_file.code == 0);
  CHECK(nlohmann::json::parse(read_text(temp / "c.json"))["top1"] == a["top1"]);
}

}  // namespace
