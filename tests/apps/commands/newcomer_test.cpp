// The first hour of a new user: train, interrupt, continue, change an option, repeat, compare, and test the devices.
#include <signal.h>

#include <filesystem>

#include "apps/idx_files.h"
#include "apps/options/option_rows.h"
#include "support/catch.h"
#include "support/temporary_folder.h"

namespace {

using namespace dp::test;
namespace fs = std::filesystem;

std::string weights_of(const std::string& run) {
  return nlohmann::json::parse(read_text(run + "/summary.json"))["weights_sha256"];
}

TEST_CASE("a newcomer's hour: every command works from what the one before has printed or written") {
  const TemporaryFolder temp;
  fs::create_directory(temp / "digits");
  write_tiny_mnist(temp / "digits");
  const auto succeeds = [&](const Words& words) {
    const Outcome outcome = run_dp_train(words, temp.path());
    INFO(Catch::Detail::stringify(words) << outcome.err);
    CHECK(outcome.code == 0);
    return outcome.out;
  };
  CHECK_THAT(succeeds({"--list-models"}), Catch::Contains("mlp "));
  CHECK_THAT(succeeds({"--list-datasets"}), Catch::Contains("mnist "));
  const Words twelve{"--dataset",
                     "mnist",
                     "--data-path",
                     "digits",
                     "--model",
                     "mlp",
                     "-b",
                     "16",
                     "--cpu",
                     "1",
                     "--epochs",
                     "4",
                     "-p",
                     "1",
                     "--opt",
                     "adamw",
                     "--lr",
                     "0.002",
                     "--sched",
                     "cosine",
                     "--lr-min",
                     "1e-5",
                     "--weight_decay",
                     "0.02",
                     "--warmup-epochs",
                     "1",
                     "--seed",
                     "9",
                     "--deterministic",
                     "--clip-grad",
                     "1"};
  succeeds(twelve + Words{"--output-dir", "whole"});

  const StallGate gate(temp / "gate");
  Program program(twelve + Words{"--output-dir", "mine"}, temp.path(),
                  {"DP_FAIL=stall:forward:dev0:step6:600000ms", gate.variable()});
  gate.wait_for();
  ::kill(program.id(), SIGINT);
  program.wait_for_error("stopping");
  gate.open();
  const Outcome interrupted = program.wait();
  CHECK(interrupted.code == 130);
  CHECK_THAT(interrupted.out, Catch::Contains("continue with --resume mine --cpu 1\n"));
  succeeds({"--resume", "mine", "--cpu", "1"});
  CHECK(weights_of(temp / "mine") == weights_of(temp / "whole"));

  CHECK_THAT(succeeds({"--resume", "mine", "--epochs", "5", "--lr", "0.001"}),
             Catch::Contains("lr 0.002 -> 0.001 (command line)"));
  succeeds({"--config", "whole/config.toml", "--cpu", "1", "--output-dir", "again"});
  CHECK(weights_of(temp / "again") == weights_of(temp / "whole"));

  CHECK_THAT(succeeds({"report", "whole", "mine", "-o", "both.html"}), Catch::Contains("both.html"));
  CHECK_THAT(read_text(temp / "both.html"), Catch::Contains("whole") && Catch::Contains("mine"));
  CHECK_THAT(succeeds({"selftest", "--cpu", "2"}), Catch::Contains("selftest: all checks passed"));
}

}  // namespace
