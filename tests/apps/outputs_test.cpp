// Outputs that fail, block or have no name: an exit status and an error line, never a hang or death by a signal.
#include <signal.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "apps/idx_files.h"
#include "apps/run_program.h"
#include "support/catch.h"
#include "support/temporary_folder.h"

namespace {

using namespace dp::test;

const Words kTiny{"--dataset", "synthetic", "--images", "32", "--model", "mlp", "--cpu", "1", "-b", "16"};

// Runs a shell script with the program's command line as its arguments.
Outcome in_shell(const std::string& script, const Words& arguments, const std::string& folder) {
  return Program(arguments, folder, {}, {"/bin/sh", "-c", script, "sh"}).wait();
}

void check_failed_output(const Outcome& outcome, const std::string& fragment) {
  INFO("stderr: " << outcome.err);
  CHECK(outcome.signal == 0);
  CHECK(outcome.code == 7);
  CHECK_THAT(outcome.err, Catch::Contains("dp_train: error: ") && Catch::Contains(fragment));
}

TEST_CASE("empty names of files and folders are rejected") {
  const TemporaryFolder temp;
  const auto check_refused = [&](const Words& words, const std::string& fragment) {
    const Outcome outcome = run_dp_train(words + Words{"--dry-run"}, temp.path());
    INFO(words.front() << ": " << outcome.err);
    CHECK(outcome.code == 2);
    CHECK_THAT(outcome.err, Catch::Contains(fragment));
  };
  for (const std::string option :
       {"--resume", "--summary", "--trace", "--init", "--data-path", "--output-dir", "--master-addr"})
    check_refused({option, ""}, option + ": it is empty; name a");
  for (const std::string option : {"--experiment", "--model", "--dataset", "--input", "--gpus", "--lr-scheduler"})
    check_refused({option, ""}, option == "--input" ? "--dataset synthetic" : "");
  // After "=" the next word must not be taken as the value.
  for (const std::string option : {"--resume", "--summary", "--data-path", "--model", "--lr"})
    check_refused({option + "="}, option + ": no value after the '='");
  CHECK(std::filesystem::is_empty(temp.path()));
}

TEST_CASE("a pipe without a reader is rejected as an output before training starts") {
  const TemporaryFolder temp;
  REQUIRE(::mkfifo((temp / "pipe").c_str(), 0600) == 0);
  for (const char* option : {"--summary", "--trace"}) {
    const Outcome outcome = run_dp_train(kTiny + Words{"--output-dir", "run", option, "pipe"}, temp.path());
    check_failed_output(outcome, "cannot write 'pipe': it is a pipe or socket without a reader");
    CHECK_THAT(outcome.out, !Catch::Contains("Epoch:"));
    CHECK_FALSE(std::filesystem::exists(temp / "run"));
  }
  REQUIRE(run_dp_train(kTiny + Words{"--output-dir", "run"}, temp.path()).code == 0);
  check_failed_output(run_dp_train(kTiny + Words{"-e", "--resume", "run", "--summary", "pipe"}, temp.path()), "'pipe'");
  REQUIRE(::mkfifo((temp / "other").c_str(), 0600) == 0);
  std::filesystem::create_directory(temp / "odd");
  std::filesystem::rename(temp / "other", temp / "odd/config.toml");
  check_failed_output(run_dp_train(kTiny + Words{"--output-dir", "odd"}, temp.path()), "odd/config.toml");
}

TEST_CASE("a pipe with a reader receives the whole summary and timeline") {
  const TemporaryFolder temp;
  REQUIRE(::mkfifo((temp / "pipe").c_str(), 0600) == 0);
  for (const char* option : {"--summary", "--trace"}) {
    const Outcome outcome = in_shell(  // the shell holds the pipe open until cat has opened it
        "exec 3<>pipe; timeout 240 cat pipe > copy 3>&- & \"$@\" 3>&-; code=$?; exec 3>&-; wait; exit $code",
        kTiny + Words{"--output-dir", option + std::string("-run"), "--epochs", "9", option, "pipe"}, temp.path());
    INFO(outcome.err);
    CHECK(outcome.code == 0);
    const std::string copy = read_text(temp / "copy");
    CHECK(copy.starts_with("{"));
    CHECK(copy.ends_with("}\n"));
  }
  const Outcome printed =
      run_dp_train(kTiny + Words{"--output-dir", "run", "--quiet", "--summary", "/dev/stdout"}, temp.path());
  CHECK(printed.code == 0);
  CHECK_THAT(printed.out, Catch::Contains("\"weights_sha256\""));
}

TEST_CASE("commands that only print end with exit code 7 if stdout is full") {
  const TemporaryFolder temp;
  for (const Words& words :
       {Words{"--help"}, Words{"--version"}, Words{"--list-models"}, Words{"env"}, Words{"estimate-memory", "--help"},
        Words{"estimate-memory", "--cpu", "1"}, kTiny + Words{"--print-plan"}, kTiny + Words{"--dry-run"}}) {
    INFO(words.front());
    check_failed_output(in_shell("exec \"$@\" > /dev/full", words, temp.path()), "stdout could not be written");
    CHECK(in_shell("\"$@\" | true", words, temp.path()).err.empty());  // a reader that exits early is no error
  }
  const Outcome trained = in_shell("exec \"$@\" > /dev/full", kTiny + Words{"--output-dir", "run"}, temp.path());
  CHECK(trained.code == 0);  // the result is in the folder
  CHECK_THAT(trained.err, Catch::Contains("dp_train: warning: stdout could not be written"));
}

TEST_CASE("an interrupted run without a folder has the exit code of its signal, even if stdout is full") {
  const TemporaryFolder temp;
  const StallGate gate(temp / "gate");
  Program program(kTiny + Words{"--dry-run"}, temp.path(), {"DP_FAIL=stall:backward:dev0:600000ms", gate.variable()},
                  {"/bin/sh", "-c", "exec \"$@\" > /dev/full", "sh"});
  gate.wait_for();  // it trains
  ::kill(program.id(), SIGINT);
  program.wait_for_error("stopping");
  gate.open();
  const Outcome outcome = program.wait();
  INFO(outcome.err);
  CHECK(outcome.code == 128 + SIGINT);
  CHECK_THAT(outcome.err, !Catch::Contains("dp_train: error"));
}

TEST_CASE("exceeding the file-size limit is an error that names the file") {
  const TemporaryFolder temp;
  const std::string limited = "ulimit -f 8 && exec \"$@\"";
  check_failed_output(in_shell(limited, kTiny + Words{"--output-dir", "run"}, temp.path()), "run/checkpoints/");
  for (const char* left : {"run/checkpoints/last", "run/summary.json"})
    CHECK_FALSE(std::filesystem::exists(temp / left));
  check_failed_output(in_shell(limited, Words{"--engine", "ddp"} + kTiny + Words{"--output-dir", "ranks"}, temp.path()),
                      "exceeds the file size limit; raise ulimit -f");
  check_failed_output(in_shell("ulimit -f 1 && exec \"$@\" > file", {"--help"}, temp.path()), "stdout");
}

TEST_CASE("options without effect on the CPU cause one warning") {
  const TemporaryFolder temp;
  const Outcome both = run_dp_train(kTiny + Words{"--dry-run", "--tf32", "--no-graphs", "--no-autotune"}, temp.path());
  CHECK(both.code == 0);
  CHECK(both.err == "dp_train: warning: --no-autotune, --tf32, --no-graphs have no effect on the CPU\n");
  CHECK(
      run_dp_train(kTiny + Words{"--dry-run", "--threads-per-replica", "1", "--exact-conv"}, temp.path()).err.empty());
  const Outcome ranks = run_dp_train(Words{"--engine", "ddp", "--dataset", "synthetic", "--images", "32", "--model",
                                           "mlp", "--cpu", "2", "-b", "16", "--dry-run", "--tf32"},
                                     temp.path());
  CHECK(ranks.code == 0);
  CHECK(ranks.err == "[rank 0] dp_train: warning: --tf32 has no effect on the CPU\n");
}

TEST_CASE("a run that exceeds the machine's memory is rejected with the batch size that fits", "[processes]") {
  const TemporaryFolder temp;
  const Outcome outcome = run_dp_train({"--dataset", "synthetic", "--input", "3,64,64", "--images", "1048576",
                                        "--model", "resnet18", "--cpu", "2", "-b", "1048576", "--output-dir", "run"},
                                       temp.path());
  INFO(outcome.err);
  CHECK(outcome.code == 4);
  CHECK_THAT(outcome.err, Catch::Contains("out of memory: a batch of 1048576 on 2 replicas needs") &&
                              Catch::Contains("; a batch of "));
  CHECK(outcome.peak_bytes < (std::size_t{1} << 30));
  CHECK(std::filesystem::is_empty(temp.path()));
}

}  // namespace
