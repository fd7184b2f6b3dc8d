// A replica trains with the threads that OpenMP allows, whatever was asked for, and a notice names the limit.
#include <nlohmann/json.hpp>

#include "apps/run_program.h"
#include "support/catch.h"
#include "support/temporary_folder.h"

namespace {

using namespace dp::test;

struct Row {
  Words variables, options;
  std::string threads;  // after the limit
  std::string source;   // in the notice; empty: no notice
};

struct Trained {
  Outcome outcome;
  std::string weights;  // their digest
};

Trained trained(const Words& variables, const Words& options) {
  const TemporaryFolder temp;
  // The first convolution's backward pass has a barrier of oneDNN. A hang ends with exit code 6.
  const Words fixed{"--dataset", "synthetic",     "--images",  "64",     "-b",        "16", "--max-steps",
                    "2",         "--no-progress", "--summary", "s.json", "--timeout", "60"};
  Outcome outcome = Program(fixed + options, temp.path(), variables).wait();
  INFO(outcome.out << outcome.err);
  REQUIRE(outcome.code == 0);
  return {outcome, nlohmann::json::parse(read_text(temp.path() + "/s.json")).at("weights_sha256").get<std::string>()};
}

}  // namespace

TEST_CASE("a team that OpenMP limits trains with fewer threads, the same bits and one notice") {
  const Words two{"--cpu", "1", "--threads-per-replica", "2"}, four{"--cpu", "1", "--threads-per-replica", "4"};
  const Row rows[] = {
      {{"OMP_THREAD_LIMIT=1"}, two, "1", "1 thread per replica instead of 2: OMP_THREAD_LIMIT=1"},
      {{"OMP_THREAD_LIMIT=2"}, four, "2", "2 threads per replica instead of 4: OMP_THREAD_LIMIT=2"},
      {{"OMP_MAX_ACTIVE_LEVELS=0"}, two, "1", "1 thread per replica instead of 2: OMP_MAX_ACTIVE_LEVELS=0"},
      {{"OMP_DYNAMIC=true", "OMP_NUM_THREADS=1"}, two, "2", ""},
      {{"OMP_THREAD_LIMIT=2"}, {"--cpu", "2", "--threads-per-replica", "2"}, "2", ""},
  };
  for (const Row& row : rows) {
    INFO(row.variables.front() << ", " << row.threads << " threads");
    const Trained limited = trained(row.variables, row.options);
    Words unlimited = row.options;
    unlimited.back() = row.threads;
    CHECK(limited.weights == trained({}, unlimited).weights);
    const auto notice = limited.outcome.out.find("per replica instead of");
    if (row.source.empty()) {
      CHECK(notice == std::string::npos);
    } else {
      CHECK_THAT(limited.outcome.out, Catch::Contains(row.source));
      CHECK(limited.outcome.out.find("per replica instead of", notice + 1) == std::string::npos);
    }
  }
}

TEST_CASE("a resumed run with logical shards is not told to use more threads than OpenMP permits") {
  const TemporaryFolder temp;
  const Words run{"--dataset", "synthetic", "--model", "mlp",           "--cpu",       "1", "--threads-per-replica",
                  "2",         "--images",  "64",      "--no-progress", "--max-steps", "2", "--logical-shards",
                  "2",         "-b",        "16",      "--output-dir",  "run"};
  REQUIRE(Program(run, temp.path()).wait().code == 0);
  for (const Words& threads : {Words{}, Words{"--threads-per-replica", "2"}}) {
    const Words resume{"--resume", "run", "--max-steps", "4"};
    const Outcome outcome = Program(resume + threads, temp.path(), {"OMP_THREAD_LIMIT=1"}).wait();
    INFO(outcome.err);
    CHECK(outcome.code == 2);
    CHECK_THAT(outcome.err, Catch::Contains("was made with threads-per-replica 2, which OMP_THREAD_LIMIT=1 does not "
                                            "permit; remove that limit, or start a new run"));
  }
}

TEST_CASE("dp_train env names the smallest limit on the cores") {
  const TemporaryFolder temp;
  const auto shown = [&](const Words& variables) { return Program({"env"}, temp.path(), variables).wait().out; };
  CHECK_THAT(shown({"OMP_THREAD_LIMIT=1"}),
             Catch::Contains("1 core available to this process, limited by OMP_THREAD_LIMIT=1"));
  CHECK_THAT(shown({"OMP_THREAD_LIMIT=2000", "OMP_NUM_THREADS=1"}), Catch::Contains("limited by OMP_NUM_THREADS=1"));
}

TEST_CASE("a launcher of several copies is announced unless --engine ddp uses it, by the first copy alone") {
  const TemporaryFolder temp;
  const Words options{"--dataset", "synthetic", "--model", "mlp", "--cpu", "1", "--dry-run"};
  const auto warning = [&](const Words& variables) { return Program(options, temp.path(), variables).wait().err; };
  for (const char* size : {"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"}) {
    INFO(size);
    CHECK_THAT(warning({std::string(size) + "=2"}),
               Catch::Contains(std::string(size) + " is 2, but --engine dp") &&
                   Catch::Contains("to train one network together, use --engine ddp"));
    CHECK(warning({std::string(size) + "=1"}).empty());
  }
  CHECK(warning({"WORLD_SIZE=2", "RANK=1"}).empty());
  CHECK(warning({"SLURM_NTASKS=4", "SLURM_PROCID=0"}).empty());  // a batch script is one process
  const Outcome copy = Program(options + Words{"--engine", "ddp"}, temp.path(), {"SLURM_STEP_NUM_TASKS=2"}).wait();
  CHECK(copy.code == 0);
  CHECK_THAT(copy.err, Catch::Contains("SLURM_STEP_NUM_TASKS is 2, but this process starts ranks of its own") &&
                           Catch::Contains("set RANK and WORLD_SIZE as torchrun does"));
}

TEST_CASE("without a GPU and without --cpu each rank of ddp trains on one CPU replica") {
  const TemporaryFolder temp;
  const Words run{"--engine", "ddp", "--dataset",     "synthetic", "--model",     "mlp", "--images",     "64",
                  "-b",       "16",  "--no-progress", "--no-eval", "--max-steps", "2",   "--output-dir", "run"};
  const Outcome outcome = Program(run, temp.path(), {"CUDA_VISIBLE_DEVICES="}).wait();
  INFO(outcome.err);
  CHECK(outcome.code == 0);
  CHECK_THAT(outcome.out, Catch::Contains("Trained to step 2"));
}
