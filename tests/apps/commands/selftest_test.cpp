// dp_train selftest: what it prints, its temporary files, and how it ends.
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <regex>

#include "apps/run_program.h"
#include "support/catch.h"
#include "support/temporary_folder.h"

namespace {

namespace fs = std::filesystem;
using namespace dp::test;

const Words kSelftest{"selftest", "--cpu", "2"};

TEST_CASE("selftest prints one line with a figure for each check and removes its files") {
  const TemporaryFolder temp;
  fs::create_directory(temp / "scratch");
  const Outcome outcome = Program(kSelftest, temp.path(), {"TMPDIR=" + (temp / "scratch")}).wait();
  INFO(outcome.out << outcome.err);
  CHECK(outcome.code == 0);
  CHECK(std::regex_match(
      outcome.out,
      std::regex("devices: cpu, cpu\n"
                 "ok      the network learns: loss \\d+\\.\\d\\d -> \\d+\\.\\d\\d in 61 steps, Acc@1 \\d+\\.\\d\n"
                 "ok      the replicas are identical, bit by bit: 2 replicas after 5 steps\n"
                 "ok      a step equals the float64 reference: \\d\\.\\de-\\d\\d of the distance moved in 3 steps, at "
                 "most 1e-04\n"
                 "ok      a checkpoint gives the same bits as training on: sha256 [0-9a-f]{12}\n"
                 "ok      one replica gives the bits of all: --logical-shards 2, sha256 [0-9a-f]{12}\n"
                 "selftest: all checks passed\n")));
  CHECK(fs::is_empty(temp / "scratch"));
}

TEST_CASE("selftest fails with an I/O error if it cannot create temporary files, after it has printed the devices",
          "[processes]") {
  const TemporaryFolder temp;
  const Outcome outcome = Program({"selftest"}, temp.path(), {"TMPDIR=" + (temp / "none")}).wait();
  INFO(outcome.out << outcome.err);
  CHECK(outcome.code == 7);
  CHECK(outcome.out.starts_with("No usable GPU ("));
  CHECK_THAT(outcome.out,
             Catch::Contains("): training on 2 CPU replicas; set another number with --cpu N\ndevices: cpu, cpu\n") &&
                 !Catch::Contains("FAILED"));
  CHECK_THAT(outcome.err, Catch::StartsWith("dp_train: error: cannot create a folder for temporary files: ") &&
                              Catch::EndsWith("; set TMPDIR to a folder in which you may write\n"));
}

TEST_CASE("selftest counts the checks that failed") {
  const TemporaryFolder temp;
  const Outcome outcome = Program(kSelftest, temp.path(), {"DP_FAIL=nan:backward:dev1:step3"}).wait();
  INFO(outcome.out);
  CHECK(outcome.code == 4);
  const Words lines = lines_of(outcome.out);
  const auto failed = std::ranges::count_if(lines, [](const auto& line) { return line.starts_with("FAILED  "); });
  CHECK(failed > 0);
  CHECK(failed + std::ranges::count_if(lines, [](const auto& line) { return line.starts_with("ok      "); }) == 5);
  CHECK(lines.back() == "selftest: " + std::to_string(failed) + " of 5 checks failed");
}

TEST_CASE("after a signal selftest ends without a result", "[processes]") {
  const TemporaryFolder temp;
  const StallGate gate(temp / "gate");
  Program program(kSelftest, temp.path(), {"DP_FAIL=stall:forward:dev0:step4:600000ms", gate.variable()});
  gate.wait_for();
  ::kill(program.id(), SIGTERM);
  program.wait_for_error("stopping");
  gate.open();
  const Outcome outcome = program.wait();
  INFO(outcome.out << outcome.err);
  CHECK(outcome.code == 128 + SIGTERM);
  CHECK_THAT(outcome.out, !Catch::Contains("selftest:") && !Catch::Contains("FAILED"));
}

}  // namespace
