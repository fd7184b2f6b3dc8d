// The N-th call of a kind fails, for every N until none fails: how the run ends, that nothing leaks, and that it
// resumes to the same bits.
#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "apps/idx_files.h"
#include "apps/run_program.h"
#include "support/catch.h"
#include "support/patience.h"
#include "support/sanitized.h"

namespace {

namespace fs = std::filesystem;
using namespace dp::test;

struct Mode {
  std::string name;
  Words words;
};
const Mode kOne{"one replica", {"--cpu", "1", "--threads-per-replica", "2"}};
const Mode kTwo{"two replicas, split 3:1", {"--cpu", "2", "--threads-per-replica", "1", "--split", "3:1"}};
const Mode kPipeline{"two stages",
                     {"--cpu", "2", "--threads-per-replica", "1", "--pipeline-stages", "2", "--micro-batches", "2"}};
const Mode kRanks{"two ranks", {"--engine", "ddp", "--cpu", "2", "--threads-per-replica", "1"}};

// The exit codes that a failing call may cause. The error must contain one of the words.
struct Kind {
  std::string name;
  std::vector<int> codes;
  Words words;
};
const Kind kAllocations{"alloc", {4}, {"memory"}};
const Kind kFiles{"file", {3, 7}, {"Input/output error"}};
const Kind kThreads{"thread", {4}, {"thread"}};
const Kind kCollectives{"collective", {4}, {"injected by DP_FAIL"}};
const Kind kPeers{
    "peer", {2, 4, 6}, {"cannot resolve", "cannot listen", "Connection reset", " lost ", "killed?", "could not join"}};

enum class Start { fresh, resumed };

// Four steps in two epochs, with a save after each step and an evaluation after each epoch.
Words arguments(const Mode& mode) {
  return Words{"--dataset",    "mnist",    "--data-path", ".",   "--model",      "mlp", "-b", "32", "--epochs",     "2",
               "--save-every", "1,1steps", "--momentum",  "0.9", "--output-dir", "run", "-p", "1",  "--no-progress"} +
         mode.words;
}

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; ++at) ++found;
  return found;
}

int steps_and_evaluations(const TemporaryFolder& temp) {
  const std::string metrics = read_text(temp / "run/metrics.jsonl");
  return count(metrics, "\"kind\":\"train\"") + count(metrics, "\"kind\":\"eval\"");
}

std::string weights_of(const TemporaryFolder& temp) {
  const std::string text = read_text(temp / "run/summary.json");
  return text.empty() ? "" : nlohmann::json::parse(text).value("weights_sha256", "");
}

const Words kResume{"--resume", "auto"};

// Empty where the leak sanitizer cannot work: it needs ptrace.
std::string leak_sanitizer() {
  static const bool works = std::system("LD_PRELOAD=" DP_LEAK_SANITIZER " /bin/true 2>/dev/null") == 0;
  return works ? DP_LEAK_SANITIZER : "";
}

struct Tally {
  std::map<int, int> ends;  // exit status: how often
  int points = 0;
};

class Runs {
 public:
  explicit Runs(Mode mode) : mode_(std::move(mode)) {
    write_tiny_mnist(temp_.path());
    run({"DP_FAIL=throw:backward:step3"});
    fs::rename(temp_ / "run", temp_ / "begun");
    const Outcome outcome = run({});
    INFO(outcome.err);
    REQUIRE(outcome.code == 0);
    undisturbed_ = weights_of(temp_), lines_ = steps_and_evaluations(temp_);
    REQUIRE(!undisturbed_.empty());
  }

  // Runs with the failing call, and resumes if the run fails. Returns whether a call failed.
  bool fail(const Kind& kind, int number, const std::string& rank = "", Start start = Start::fresh) {
    fs::remove_all(temp_ / "run");
    fs::remove(temp_ / "record");
    if (start == Start::resumed) fs::copy(temp_ / "begun", temp_ / "run", fs::copy_options::recursive);
    const Outcome outcome =
        run({"LD_PRELOAD=" DP_FAILING_CALLS ":" + leak_sanitizer(), "DP_FAIL_RECORD=" + temp_ / "record",
             "DP_FAIL=fail:" + kind.name + ":" + std::to_string(number) + rank},
            start == Start::resumed ? kResume : Words{});
    const std::string record = read_text(temp_ / "record");
    const bool failed = kind.name == kCollectives.name ? outcome.code != 0 : !record.empty();
    INFO(mode_.name << rank << ", " << kind.name << " " << number << ": " << record << "exit status " << outcome.code
                    << "\n"
                    << outcome.err);
    if (failed) check(kind, outcome, record);
    ++tally_.ends[outcome.code], tally_.points += failed;
    if (outcome.code != 0) resume();
    CHECK(weights_of(temp_) == undisturbed_);
    CHECK((steps_and_evaluations(temp_) == lines_ || is_in(outcome.out + outcome.err, kind.words)));
    if (start == Start::resumed)
      CHECK(count(read_text(temp_ / "run/metrics.jsonl"), "\"kind\":\"train\",\"epoch\":0") == 2);
    return failed;
  }

  const Tally& tally() const { return tally_; }

 private:
  Outcome run(const Words& variables, const Words& more = {}) {
    Program program(arguments(mode_) + more, temp_.path(), variables + sanitizer_options());
    const bool ended = program.ends_within(kPatience.count());
    if (!ended) ::kill(program.id(), SIGKILL);
    const Outcome outcome = program.wait();
    INFO(outcome.out << outcome.err);
    CHECK(ended);
    CHECK(count(outcome.err, "Sanitizer") == 0);
    return outcome;
  }

  static bool is_in(const std::string& text, const Words& words) {
    return std::ranges::any_of(words, [&](const std::string& word) { return count(text, word) > 0; });
  }

  static Words sanitizer_options() {
    if (!kSanitized) return {"LSAN_OPTIONS=exitcode=99"};
    return {"ASAN_OPTIONS=verify_asan_link_order=0:exitcode=99:allocator_may_return_null=1"};
  }

  void check(const Kind& kind, const Outcome& outcome, const std::string& record) const {
    CHECK(outcome.signal == 0);
    CHECK(count(outcome.err, "dp: crashed") == 0);
    if (outcome.code == 0) return;
    const bool shared_memory = is_in(record, {"memfd", "/proc/"}) && outcome.code == 4;
    CHECK((shared_memory || std::ranges::count(kind.codes, outcome.code) == 1));
    CHECK(count(outcome.err, "unexpected") == 0);
    CHECK(is_in(outcome.err, kind.words));
    if (mode_.name != kRanks.name)
      CHECK(count(outcome.err, "dp_train: error: ") == 1);
    else
      CHECK(count(outcome.err, "error: ") >= 1);
  }

  void resume() {
    const Outcome resumed = run({}, kResume);
    INFO("resumed: " << resumed.err);
    CHECK(resumed.code == 0);
  }

  Mode mode_;
  TemporaryFolder temp_;
  std::string undisturbed_;
  int lines_ = 0;
  Tally tally_;
};

// Fails the call `first` and each `stride`-th after it, until no call fails.
void fail_each(const Mode& mode, const Kind& kind, const Words& ranks = {""}, Start start = Start::fresh, int first = 1,
               int stride = 1) {
  Runs runs(mode);
  for (const std::string& rank : ranks) {
    int number = first;
    while (runs.fail(kind, number, rank, start)) number += stride;
    // Collectives leave no record. A run that lost a failure would look like the last one.
    if (kind.name == kCollectives.name) CHECK_FALSE(runs.fail(kind, number + stride, rank, start));
  }
  std::string text = mode.name + ", " + kind.name + ": " + std::to_string(runs.tally().points) + " points; exit status";
  for (const auto& [status, times] : runs.tally().ends)
    text += " " + std::to_string(status) + ": " + std::to_string(times);
  WARN(text);
  CHECK(runs.tally().points > 0);
}

// Long loops are divided into cases that can run at the same time: case Part fails every fourth call. Under a sanitizer
// it fails every 40th.
#define IN_PARTS(name) TEMPLATE_TEST_CASE_SIG(name, "[nightly]", ((int Part), Part), 1, 2, 3, 4)
void fail_part(int part, const Mode& mode, const Kind& kind, const Words& ranks = {""}, Start start = Start::fresh) {
  fail_each(mode, kind, ranks, start, part, kSanitized ? 40 : 4);
}

// With --engine ddp: the calls of each rank, and of each process.
const Words kEachRank{":dev0", ":dev1", ""};

}  // namespace

TEST_CASE("nth failure: threads, in each mode", "[nightly]") {
  for (const Mode& mode : {kOne, kTwo, kPipeline}) fail_each(mode, kThreads);
  fail_each(kRanks, kThreads, kEachRank);
}

TEST_CASE("nth failure: collectives and transfers between stages", "[nightly]") {
  for (const Mode& mode : {kTwo, kPipeline}) fail_each(mode, kCollectives);
  fail_each(kRanks, kCollectives, kEachRank);
}

IN_PARTS("nth failure: allocations of one process") {
  for (const Mode& mode : {kOne, kTwo, kPipeline}) fail_part(Part, mode, kAllocations);
}

IN_PARTS("nth failure: allocations of ranks") { fail_part(Part, kRanks, kAllocations, kEachRank); }

IN_PARTS("nth failure: files of a new run") { fail_part(Part, kOne, kFiles); }

IN_PARTS("nth failure: files of two stages") { fail_part(Part, kPipeline, kFiles); }

IN_PARTS("nth failure: files of a resumed run") { fail_part(Part, kOne, kFiles, {""}, Start::resumed); }

IN_PARTS("nth failure: files of ranks") { fail_part(Part, kRanks, kFiles, kEachRank); }

IN_PARTS("nth failure: connections of ranks") { fail_part(Part, kRanks, kPeers, kEachRank); }

TEST_CASE("nth failure: one call of each kind, with one process and with ranks") {
  Runs one(kPipeline), ranks(kRanks);
  CHECK(one.fail(kThreads, 3));
  CHECK(one.fail(kAllocations, 30));
  CHECK(one.fail(kFiles, 150));
  CHECK(one.fail(kFiles, 60, "", Start::resumed));
  CHECK(one.fail(kCollectives, 2));
  CHECK(ranks.fail(kCollectives, 3, ":dev1"));
  CHECK(ranks.fail(kPeers, 20, ":dev1"));
}
