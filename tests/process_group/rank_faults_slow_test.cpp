// A rank dies or stops, and no launcher ends the others: each of them ends by itself and names that rank.
#include <signal.h>

#include <chrono>
#include <functional>
#include <regex>

#include "apps/processes.h"
#include "process_group/rank_programs.h"
#include "support/temporary_folder.h"

using namespace dp::test;

namespace {

constexpr int kMembers = 3, kTimeout = 5;

// What the victim does when the signal arrives.
enum class Moment { joining, step, evaluation, save };
constexpr const char* kMoments[] = {"joining", "a step", "an evaluation", "a save"};

struct Fault {
  int signal;
  int victim;
  Moment moment;
};

struct Ranks {
  TemporaryFolder folder;
  std::string port = free_port();
  std::vector<Program> all;

  // `variables` are those of the victim alone.
  Ranks(const Fault& fault, const Words& variables) {
    write_tiny_mnist(folder.path());
    Words arguments = endless_run("run") + Words{"--cpu", "1", "--sync-checkpoints", "--save-every", "1,100steps"};
    // A dead rank is noticed without a time limit.
    const bool by_time = fault.signal == SIGSTOP || fault.moment == Moment::joining;
    value_of(arguments, "--timeout") = by_time ? std::to_string(kTimeout) : "600";
    const int started = fault.moment == Moment::joining ? kMembers - 1 : kMembers;
    for (int rank = 0; rank < started; ++rank) {
      all.emplace_back(arguments, folder.path(),
                       rank_variables(rank, kMembers, port) + (rank == fault.victim ? variables : Words{}));
      if (rank == 0) CHECK(becomes([&] { return is_connected(std::stoi(port)); }));
    }
  }
};

// Whether every other rank names the victim.
bool names_victim(const Fault& fault) {
  INFO("signal " << fault.signal << " to rank " << fault.victim << " in " << kMoments[static_cast<int>(fault.moment)]);
  const TemporaryFolder signs;
  const StallGate gate(signs / "gate");
  Words variables;
  if (fault.moment == Moment::save)
    variables = {"LD_PRELOAD=" DP_STANDING_CALLS, "DP_STANDS_AT=open:model.safetensors",
                 "DP_STANDS_FILE=" + (signs / "stands")};
  if (fault.moment == Moment::evaluation || (fault.moment == Moment::step && fault.signal == SIGKILL))
    variables = {gate.variable(), fault.moment == Moment::step ? "DP_FAIL=stall:backward:step3:600000ms"
                                                               : "DP_FAIL=stall:forward:step6:600000ms"};
  Ranks ranks(fault, variables);
  Program& victim = ranks.all[static_cast<std::size_t>(fault.victim)];
  if (fault.moment == Moment::save)
    CHECK(becomes([&] { return std::filesystem::exists(signs / "stands"); }));
  else if (!variables.empty())
    gate.wait_for(fault.victim);
  else if (fault.moment == Moment::joining)
    ranks.all.back().wait_until_signals_are_handled();
  else
    ranks.all.front().wait_for("Epoch: [1]");
  const auto begin = std::chrono::steady_clock::now();
  ::kill(victim.id(), fault.signal);
  bool named = true;
  double longest = 0;
  std::string texts;
  for (Program& rank : ranks.all) {
    if (&rank == &victim) continue;
    const bool ended = rank.ends_within(3 * kTimeout);
    CHECK(ended);
    if (!ended) ::kill(rank.id(), SIGKILL);
    longest = std::max(longest, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    const Outcome outcome = rank.wait();
    const std::regex name("rank" + std::string(fault.victim == 0 ? "s? " : "s? ([0-9], )*") +
                          std::to_string(fault.victim) + "[^0-9]");
    named = named && std::regex_search(outcome.err, name) && (outcome.code == 4 || outcome.code == 6);
    texts += "code " + std::to_string(outcome.code) + ": " + outcome.err;
  }
  ::kill(victim.id(), SIGKILL);
  victim.wait();
  WARN("after signal " << fault.signal << " to rank " << fault.victim << " in "
                       << kMoments[static_cast<int>(fault.moment)] << " the others ended within " << longest << " s:\n"
                       << texts);
  return named;
}

}  // namespace

TEST_CASE("faults: the remaining ranks end and name a killed rank") {
  for (const Moment moment : {Moment::joining, Moment::step, Moment::evaluation})
    for (const int victim : {0, 1}) CHECK(names_victim({SIGKILL, victim, moment}));
}

// On a busy machine another rank may be named in one of the tries.
TEST_CASE("faults: the remaining ranks end and name a stopped rank") {
  for (const auto& [moment, victim] : {std::pair(Moment::joining, 0), {Moment::step, 0}, {Moment::step, 1}}) {
    bool named = false;
    for (int tries = 0; tries < 3 && !named; ++tries) named = names_victim({SIGSTOP, victim, moment});
    CHECK(named);
  }
}

TEST_CASE("faults: if rank 0 is killed or stopped during a save, the waiting ranks end and name it") {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  DP_SKIP("the sanitizers' runtimes must be loaded first");
#else
  for (const int signal : {SIGKILL, SIGSTOP}) CHECK(names_victim({signal, 0, Moment::save}));
#endif
}
