// The three launchers of the multi-process engine, and what the user sees when one fails.
#include <fcntl.h>
#include <signal.h>

#include <cstdlib>
#include <fstream>

#include "apps/processes.h"
#include "dp/checkpoint.h"
#include "process_group/group_ranks.h"
#include "process_group/rank_programs.h"
#include "support/patience.h"
#include "support/temporary_folder.h"

using namespace dp::test;

namespace {

constexpr int kRanks = 3;

Outcome self_started(const std::string& folder, const Words& more) {
  return run_dp_train(short_run("run") + Words{"--cpu", std::to_string(kRanks)} + more, folder);
}

// Starts the ranks like torchrun: one process per rank, configured by environment variables. Returns rank 0's outcome.
Outcome by_environment(const std::string& folder, const Words& more) {
  const std::string port = free_port();
  std::vector<Program> ranks;
  for (int rank = 0; rank < kRanks; ++rank)
    ranks.emplace_back(short_run("run") + Words{"--cpu", "1"} + more, folder, rank_variables(rank, kRanks, port));
  Outcome first;
  for (int rank = 0; rank < kRanks; ++rank) {
    const Outcome outcome = ranks[static_cast<std::size_t>(rank)].wait();
    INFO("rank " << rank << ": " << outcome.err);
    CHECK(outcome.code == 0);
    if (rank == 0) first = outcome;
    if (rank != 0) CHECK(outcome.out.empty());  // only rank 0 logs
  }
  return first;
}

Outcome by_mpirun(const std::string& folder, const Words& more) {
  return Program(short_run("run") + Words{"--cpu", "1"} + more, folder, mpi_environment(),
                 {mpirun_program(), "-np", std::to_string(kRanks)})
      .wait();
}

using Launcher = Outcome (*)(const std::string&, const Words&);

// The digest of the final weights of a launcher's run.
std::string conform(Launcher launch, const Words& more) {
  const TemporaryFolder folder;
  write_tiny_mnist(folder.path());
  const Outcome outcome = launch(folder.path(), more);
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  const auto summary = summary_in(folder.path() + "/run");
  CHECK(summary["engine"] == "ddp");
  CHECK(summary["steps"] == 6);
  CHECK(summary["global_batch"] == 12);
  CHECK(summary["devices"] == std::vector<std::string>(kRanks, "cpu"));
  CHECK(outcome.out.find("Result: ") != std::string::npos);
  return summary["weights_sha256"];
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("launchers: the own launcher and torchrun's environment give the same run") {
  const std::string expected = conform(self_started, {});
  CHECK(conform(by_environment, {}) == expected);
}

TEST_CASE("launchers: mpirun gives the same run") {
  if (mpirun_program().empty()) DP_SKIP("mpirun or the MPI plugin is not here");
  const std::string expected = conform(self_started, {});
  CHECK(conform(by_mpirun, {}) == expected);
  conform(by_mpirun, {"--comm", "mpi"});  // MPI sums in its own order
}

TEST_CASE("launchers: without a loadable MPI plugin, a rank started by mpirun fails with a remedy") {
  const TemporaryFolder folder;
  write_tiny_mnist(folder.path());
  write_text(folder / "libdp_mpi.so", "not a library");
  const Outcome outcome = Program(short_run("run") + Words{"--cpu", "1"}, folder.path(),
                                  {"OMPI_COMM_WORLD_SIZE=1", "DP_PLUGIN_PATH=" + folder.path()})
                              .wait();
  INFO(outcome.err);
  CHECK(outcome.code == 2);
  CHECK(has(outcome.err, "started by mpirun"));
  CHECK(has(outcome.err, "libdp_mpi.so"));
  CHECK(has(outcome.err, "with --engine ddp alone, or with torchrun"));
}

// The output depends on timing, so the test tries several runs. The launcher sorts the lines by rank only if it reads
// both at once, and it kills a rank that does not report within three seconds after the other rank has ended.
TEST_CASE("launchers: error lines name their rank, and the cause comes first") {
  bool cause_first = false;
  for (int tries = 0; tries < 5 && !cause_first; ++tries) {
    const TemporaryFolder folder;
    write_tiny_mnist(folder.path());
    const Outcome outcome =
        Program(short_run("run") + Words{"--cpu", "3"}, folder.path(), {"DP_FAIL=throw:backward:dev1:step2"}).wait();
    INFO(outcome.err);
    CHECK(outcome.code == 4);
    const std::size_t cause =
        outcome.err.find("[rank 1] dp_train: error: rank 1: rank 1 (cpu) failed in backward of step 2");
    const std::size_t consequence = outcome.err.find("[rank 0] dp_train: error: rank 0 stops: rank 1 failed");
    cause_first = cause < consequence && consequence != std::string::npos;
    UNSCOPED_INFO(outcome.err);
  }
  CHECK(cause_first);
}

namespace {

// Ranks 0 and 2 of 3, with --timeout 2 for rank 0. Whether both name rank 1.
bool names_missing_rank() {
  const TemporaryFolder folder;
  write_tiny_mnist(folder.path());
  GroupAddress address;  // rank 0 inherits its listener: rank 2 has joined before rank 0 begins to wait
  const std::string port = std::to_string(address.port);
  Words arguments = short_run("run") + Words{"--cpu", "1"};
  Program third(arguments, folder.path(), rank_variables(2, 3, port));
  REQUIRE(becomes([&] { return is_connected(address.port, /*unread=*/true); }));
  value_of(arguments, "--timeout") = "2";
  ::fcntl(address.listener.get(), F_SETFD, 0);
  Program first(arguments, folder.path(),
                rank_variables(0, 3, port) + Words{"DP_LISTENER=" + std::to_string(address.listener.get())});
  bool named = true;
  for (Program* program : {&first, &third}) {
    const Outcome outcome = program->wait();
    UNSCOPED_INFO("code " << outcome.code << ": " << outcome.err);
    named = named && outcome.code == 6 && has(outcome.err, ": rank 1 of 3 did not join within 2 s");
  }
  return named;
}

}  // namespace

// This test uses a real timeout of two seconds. On a busy machine rank 0 itself may exceed it, and the run fails with
// another message. The test then tries again.
TEST_CASE("launchers: a rank that does not join is named after the timeout") {
  bool named = false;
  for (int tries = 0; tries < 3 && !named; ++tries) named = names_missing_rank();
  CHECK(named);
}

TEST_CASE("launchers: ranks started with different options or another token are reported") {
  const TemporaryFolder folder;
  write_tiny_mnist(folder.path());
  const auto pair = [&](const Words& more, const std::string& token) {
    const std::string port = free_port();
    Words arguments = short_run("run-" + port) + Words{"--cpu", "1"};
    Program first(arguments, folder.path(), rank_variables(0, 2, port));
    Program second(arguments + more, folder.path(), rank_variables(1, 2, port, token));
    const Outcome refused = second.wait();
    if (token != "secret") ::kill(first.id(), SIGKILL);  // rank 0 still waits for a rank with its token
    first.wait();
    return refused;
  };
  const Outcome other_rate = pair({"--lr", "0.5"}, "secret");
  INFO(other_rate.err);
  CHECK(other_rate.code == 2);
  CHECK(has(other_rate.err, "rank 1 was started with lr 0.5, rank 0 with"));
  for (const char* token : {"another", "", "secre"}) {
    const Outcome stranger = pair({}, token);
    INFO("token '" << token << "': " << stranger.err);
    CHECK(stranger.code == 2);
    CHECK(has(stranger.err, "its token differs from rank 0's"));
  }
}

TEST_CASE("launchers: the launcher generates a token for its ranks") {
  const TemporaryFolder folder;
  write_tiny_mnist(folder.path());
  Program program(endless_run("run") + Words{"--cpu", "2"}, folder.path());
  program.wait_for("Epoch: [1]");
  const std::vector<pid_t> ranks = children_of(program.id());
  CHECK(ranks.size() == 2);
  for (const pid_t rank : ranks) {
    const std::string variables = read_text("/proc/" + std::to_string(rank) + "/environ");
    const auto at = variables.find("DP_TOKEN=");
    REQUIRE(at != std::string::npos);
    CHECK(variables.find('\0', at) - at - std::string("DP_TOKEN=").size() == 32);
  }
  ::kill(program.id(), SIGINT);
  CHECK(program.wait().code == 130);
}

TEST_CASE("launchers: an interrupt reaches every rank and leaves a checkpoint") {
  const TemporaryFolder folder;
  write_tiny_mnist(folder.path());
  Program program(endless_run("run") + Words{"--cpu", "2"}, folder.path());
  program.wait_for("Epoch: [2]");
  ::kill(program.id(), SIGINT);
  const Outcome outcome = program.wait();
  INFO(outcome.err);
  CHECK(outcome.code == 130);
  CHECK(std::filesystem::exists(folder.path() + "/run/checkpoints/last/manifest.json"));
  CHECK(all_gone(folder.path()));
}

TEST_CASE("launchers: an interrupt ends the wait for a rank that does not join") {
  const TemporaryFolder folder;
  write_tiny_mnist(folder.path());
  const std::string port = free_port();
  Program program(short_run("run") + Words{"--cpu", "1"}, folder.path(), rank_variables(0, 2, port));
  REQUIRE(becomes([&] { return is_connected(std::stoi(port)); }));  // it waits for the other rank
  const auto begin = std::chrono::steady_clock::now();
  ::kill(program.id(), SIGINT);
  CHECK(program.wait().code == 130);
  CHECK(in_time(begin, 1));
}

TEST_CASE("launchers: a rank signalled alone in an evaluation ends, and so does the next one") {
  const TemporaryFolder folder;
  write_tiny_mnist(folder.path());
  REQUIRE(run_dp_train(short_run("run") + Words{"--cpu", "2"}, folder.path()).code == 0);
  const std::string port = free_port();
  Words arguments = short_run("run") + Words{"--cpu", "1", "-e", "--resume", "run"};
  const StallGate gate(folder / "gate");
  std::vector<Program> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    auto variables = rank_variables(rank, 2, port);
    variables.emplace_back("DP_FAIL=stall:forward:dev0:600000ms");
    variables.push_back(gate.variable());
    ranks.emplace_back(arguments, folder.path(), variables);
  }
  gate.wait_for();  // rank 0 stalls; rank 1 evaluates its part, or waits for rank 0
  ranks[1].wait_until_signals_are_handled();
  std::this_thread::sleep_for(std::chrono::seconds(1));  // so that rank 1 usually waits for rank 0
  ::kill(ranks[1].id(), SIGTERM);
  CHECK(ranks[1].ends_within(2));
  CHECK(ranks[1].wait().code == 143);
  ::kill(ranks[0].id(), SIGTERM);  // during its stall
  CHECK(ranks[0].ends_within(2));
  const Outcome first = ranks[0].wait();
  INFO(first.err);
  CHECK(first.code == 143);
  CHECK_FALSE(has(first.err, "error"));
}

TEST_CASE("launchers: no rank outlives a killed parent") {
  const TemporaryFolder folder;
  write_tiny_mnist(folder.path());
  Program program(endless_run(folder.path() + "/run") + Words{"--cpu", "2"}, folder.path());
  program.wait_for("Epoch: [1]");
  CHECK(processes_with(folder.path()).size() == 3);
  ::kill(program.id(), SIGKILL);
  CHECK(program.wait().signal == SIGKILL);
  CHECK(all_gone(folder.path()));
}

TEST_CASE("launchers: a rank killed in a step ends every rank, and dp resumes from the last checkpoint") {
  const TemporaryFolder folder;
  write_tiny_mnist(folder.path());
  const StallGate gate(folder / "gate");
  const std::string run = folder / "run";
  Program program(endless_run(run) + Words{"--cpu", "2", "--save-every", "1,3steps", "--sync-checkpoints"},
                  folder.path(), {"DP_FAIL=stall:backward:step7:600000ms", gate.variable()});
  for (const int rank : {0, 1}) gate.wait_for(rank);
  const std::vector<pid_t> ranks = children_of(program.id());
  REQUIRE(ranks.size() == 2);
  ::kill(ranks[1], SIGKILL);
  const Outcome killed = program.wait();
  INFO(killed.err);
  CHECK(killed.code == 137);
  CHECK(all_gone(run));
  const std::int64_t saved = dp::load_checkpoint(run + "/checkpoints/last").state.step;
  CHECK((saved == 6 || saved == 7));
  Words resumed = short_run(run) + Words{"--cpu", "1", "--resume", "auto"};
  value_of(resumed, "--engine") = "dp";
  value_of(resumed, "--max-steps") = std::to_string(saved + 3);
  const Outcome end = run_dp_train(resumed, folder.path());
  INFO(end.err);
  CHECK(end.code == 0);
  CHECK(summary_in(run)["steps"] == saved + 3);
}

TEST_CASE("launchers: a finished run that is resumed ends again") {
  const TemporaryFolder temp;
  write_tiny_mnist(temp.path());
  for (const Words& resume : {Words{}, Words{"--resume", "auto"}}) {
    Program program(short_run("run") + resume, temp.path());
    const bool ended = program.ends_within(30);
    if (!ended) ::kill(program.id(), SIGKILL);
    CHECK(ended);
    CHECK(program.wait().code == 0);
  }
}
