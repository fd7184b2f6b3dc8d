// A run that is killed repeatedly and resumed on another number of replicas each time ends bit-equal to an
// uninterrupted run: L1 and L2 of docs/reference/reproducibility.md.
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "apps/idx_files.h"
#include "apps/run_program.h"
#include "support/catch.h"

namespace {

namespace fs = std::filesystem;
using namespace dp::test;

struct Setting {
  std::string model;
  int steps;
  std::vector<std::string> more;
  std::string save_every = "1,2steps";
};

std::vector<std::string> arguments(const Setting& setting, const std::string& output, int replicas, bool resume) {
  std::vector<std::string> all{"--dataset",
                               "mnist",
                               "--data-path",
                               ".",
                               "-b",
                               "24",
                               "--epochs",
                               "100",
                               "--momentum",
                               "0.9",
                               "--logical-shards",
                               "4",
                               "--save-every",
                               setting.save_every,
                               "--checkpoint-hist",
                               "2",
                               "--quiet"};
  all.insert(all.end(), {"--model", setting.model, "--max-steps", std::to_string(setting.steps), "--output-dir", output,
                         "--cpu", std::to_string(replicas)});
  all.insert(all.end(), setting.more.begin(), setting.more.end());
  if (resume) all.insert(all.end(), {"--resume", "auto"});
  return all;
}

nlohmann::json summary_of(const fs::path& run) {
  std::ifstream in(run / "summary.json");
  return nlohmann::json::parse(in);
}

double seconds_of(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Whether a save was killed: its temporary folder is left.
bool was_saving(const fs::path& run) {
  std::error_code none;
  for (const fs::directory_entry& entry : fs::directory_iterator(run / "checkpoints", none))
    if (entry.path().filename().string().starts_with('.')) return true;
  return false;
}

// Kills `kills` runs during training, at random moments. A run that has reached its last step stalls there until it is
// killed. Then it is completed and compared, and a new run starts.
void check_killed_runs(const Setting& setting, int kills) {
  const TemporaryFolder temp;
  write_tiny_mnist(temp.path());
  nlohmann::json whole;
  const double start = seconds_of([&] {
    Setting one = setting;
    one.steps = 1;
    REQUIRE(run_dp_train(arguments(one, "one", 2, false), temp.path()).code == 0);
  });
  const double seconds = seconds_of([&] {
    const Outcome outcome = run_dp_train(arguments(setting, "whole", 2, false), temp.path());
    INFO(outcome.err);
    REQUIRE(outcome.code == 0);
    whole = summary_of(fs::path(temp.path()) / "whole");
  });
  std::mt19937 random(7);
  const std::vector<int> replicas{1, 2, 4};
  int run = 0, saving = 0;
  const auto folder = [&] { return "killed-" + std::to_string(run); };
  const auto complete = [&] {
    const Outcome last = run_dp_train(arguments(setting, folder(), 4, true), temp.path());
    INFO(last.err);
    REQUIRE(last.code == 0);
    const nlohmann::json ended = summary_of(fs::path(temp.path()) / folder());
    CHECK(ended["steps"] == setting.steps);
    CHECK(ended["weights_sha256"] == whole["weights_sha256"]);
    CHECK(ended["top1"] == whole["top1"]);  // from the moving average, which the checkpoints contain
  };
  const std::string stall = "DP_FAIL=stall:backward:dev0:step" + std::to_string(setting.steps - 1) + ":600000ms";
  for (int kill = 0; kill < kills; ++kill) {
    const std::string gate = temp / ("gate" + std::to_string(kill));
    Program program(arguments(setting, folder(), replicas[static_cast<std::size_t>(kill) % 3], true), temp.path(),
                    {stall, StallGate(gate).variable()});
    // Shortly after the start of training, so that a run is killed several times.
    const double pause = start * 0.5 + std::uniform_real_distribution<double>(0, 0.2)(random) * seconds;
    std::this_thread::sleep_for(std::chrono::duration<double>(pause));
    ::kill(program.id(), SIGKILL);
    const Outcome outcome = program.wait();
    INFO("kill " << kill << ": " << outcome.err);
    REQUIRE(outcome.signal == SIGKILL);
    saving += was_saving(fs::path(temp.path()) / folder());
    if (fs::exists(gate + ".0")) complete(), ++run;
  }
  complete();
  WARN(kills << " kills, " << saving << " of them during a save; " << run + 1 << " runs completed");
}

}  // namespace

TEST_CASE("runs killed at twenty moments and resumed on other numbers of replicas end with the same bits") {
  check_killed_runs({"mnist_convnet", 120, {"--model-ema", "--model-ema-decay", "0.9"}}, 20);
}

TEST_CASE("ResNet18 with synchronised statistics ends with the same bits after kills and resumes") {
  check_killed_runs({"resnet18", 8, {"--bn", "sync", "--model-ema", "--model-ema-decay", "0.9"}}, 4);
}

// Takes ten minutes or more: test_apps_slow "[kills]".
TEST_CASE("runs killed a thousand times, while a save follows each step, end with the same bits", "[.][kills]") {
  check_killed_runs({"mlp", 300, {"--model-ema"}, "1steps"}, 1000);
}
