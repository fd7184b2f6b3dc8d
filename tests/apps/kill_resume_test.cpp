// A run that is killed again and again, and goes on each time on another number of replicas, ends with the same bits as one
// that was left alone: L1 and L2 of docs/reproducibility.md.
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "apps/idx_files.h"
#include "apps/run_program.h"
#include "support/catch.h"

namespace {

namespace fs = std::filesystem;
using namespace dp::test;

std::vector<std::string> arguments(const std::string& output, int replicas, const std::vector<std::string>& more) {
  std::vector<std::string> all{"--dataset",
                               "mnist",
                               "--data-path",
                               ".",
                               "--model",
                               "mnist_convnet",
                               "-b",
                               "24",
                               "--max-steps",
                               "120",
                               "--epochs",
                               "100",
                               "--momentum",
                               "0.9",
                               "--logical-shards",
                               "4",
                               "--save-every-steps",
                               "2",
                               "--checkpoint-hist",
                               "2",
                               "--output-dir",
                               output,
                               "--cpu",
                               std::to_string(replicas),
                               "--quiet"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

nlohmann::json summary_of(const fs::path& run) {
  std::ifstream in(run / "summary.json");
  return nlohmann::json::parse(in);
}

}  // namespace

TEST_CASE("killed at twenty moments and resumed on another number of replicas, a run ends with the same bits") {
  const TemporaryFolder temp;
  write_tiny_mnist(temp.path());
  const std::vector<std::string> options{"--model-ema", "--model-ema-decay", "0.9"};
  const auto begin = std::chrono::steady_clock::now();
  const Outcome whole = run_dp_train(arguments("whole", 2, options), temp.path());
  INFO(whole.err);
  REQUIRE(whole.code == 0);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();

  std::mt19937 random(7);
  int killed = 0;
  const std::vector<int> replicas{1, 2, 4};
  for (int attempt = 0; attempt < 20; ++attempt) {
    std::vector<std::string> more = options;
    more.insert(more.end(), {"--resume", "auto"});
    Program program(arguments("killed", replicas[static_cast<std::size_t>(attempt) % 3], more), temp.path());
    const double pause = std::uniform_real_distribution<double>(0.05, 0.5)(random) * seconds;
    std::this_thread::sleep_for(std::chrono::duration<double>(pause));
    ::kill(program.id(), SIGKILL);
    const Outcome outcome = program.wait();
    killed += outcome.signal == SIGKILL;
    INFO("attempt " << attempt << ": " << outcome.err);
    CHECK((outcome.signal == SIGKILL || outcome.code == 0));
  }
  CHECK(killed >= 2);
  std::vector<std::string> more = options;
  more.insert(more.end(), {"--resume", "auto"});
  const Outcome last = run_dp_train(arguments("killed", 4, more), temp.path());
  INFO(last.err);
  REQUIRE(last.code == 0);
  const auto a = summary_of(fs::path(temp.path()) / "whole"), b = summary_of(fs::path(temp.path()) / "killed");
  CHECK(b["steps"] == 120);
  CHECK(a["weights_sha256"] == b["weights_sha256"]);
  CHECK(a["top1"] == b["top1"]);  // of the moving average: it came through the checkpoints too
}
