// A rank is killed at a random moment. All ranks must end, no process may remain, and dp resumes from the last
// checkpoint on another number of devices.
#include <signal.h>

#include <algorithm>
#include <random>

#include "dp/checkpoint.h"

#include "apps/processes.h"
#include "process_group/rank_programs.h"
#include "support/temporary_folder.h"

using namespace dp::test;

namespace {

// Kills a rank and waits for its end while the launcher stands still. Three seconds after a rank has failed, the
// launcher kills all ranks, and would take this one for one of them.
void kill_beside_stopped(pid_t launcher, pid_t rank) {
  ::kill(launcher, SIGSTOP);
  CHECK(becomes([&] { return state_of(launcher) == 'T'; }));
  ::kill(rank, SIGKILL);
  const std::filesystem::path threads = "/proc/" + std::to_string(rank) + "/task";
  CHECK(becomes(
      [&] { return state_of(rank) == 'Z' && std::distance(std::filesystem::directory_iterator(threads), {}) == 1; }));
  ::kill(launcher, SIGCONT);
}

}  // namespace

TEST_CASE("a rank killed at twenty random moments ends all ranks, and the other engine resumes the run") {
  const TemporaryFolder folder;
  write_tiny_mnist(folder.path());
  std::mt19937 random(11);
  int killed = 0, gone_on_by_dp = 0;
  std::int64_t dp_step = 0;  // the step at which dp's last run ended
  const std::string last = folder.path() + "/run/checkpoints/last";
  for (int attempt = 0; attempt < 60 && killed < 20; ++attempt) {
    const bool ddp = attempt % 3 != 2;
    const int replicas = 1 + attempt % 4;
    Words arguments = short_run(folder.path() + "/run") + Words{"--save-every", "1,1steps", "--resume", "auto"} +
                      Words{"--cpu", std::to_string(ddp ? std::max(2, replicas) : replicas)};
    value_of(arguments, "--max-steps") = value_of(arguments, "--epochs") = "1000000";
    value_of(arguments, "--engine") = ddp ? "ddp" : "dp";
    INFO("attempt " << attempt);
    if (!ddp) {  // dp resumes from the checkpoint of ddp's killed run
      if (!std::filesystem::exists(last)) continue;
      const std::int64_t saved = dp::load_checkpoint(last).state.step;
      value_of(arguments, "--max-steps") = std::to_string(saved + 3);
      const Outcome outcome = run_dp_train(arguments, folder.path());
      INFO(outcome.err);
      REQUIRE(outcome.code == 0);
      CHECK(summary_in(folder.path() + "/run")["steps"] == saved + 3);
      gone_on_by_dp += saved > dp_step;  // ddp had advanced since dp's last run
      dp_step = saved + 3;
      std::filesystem::remove(folder.path() + "/run/summary.json");
      continue;
    }
    const auto saved_at = [&] {
      std::error_code none;
      return std::filesystem::last_write_time(last + "/manifest.json", none);
    };
    const auto before = saved_at();
    Program program(arguments, folder.path());
    if (attempt % 3 == 1) CHECK(becomes([&] { return saved_at() != before; }));  // the run advances before dp's turn
    std::this_thread::sleep_for(std::chrono::milliseconds(300 + random() % 1500));
    std::vector<pid_t> all = processes_with(folder.path() + "/run");
    std::erase(all, program.id());
    if (all.empty()) {
      ::kill(program.id(), SIGKILL);
    } else {
      kill_beside_stopped(program.id(), all[random() % all.size()]);
      ++killed;
    }
    const auto begin = std::chrono::steady_clock::now();
    const Outcome outcome = program.wait();
    INFO(outcome.err);
    CHECK((outcome.code == 137 || outcome.signal == SIGKILL));
    CHECK(in_time(begin, 5));
    CHECK(all_gone(folder.path() + "/run"));
    if (std::filesystem::exists(last))
      CHECK(dp::load_checkpoint(last).state.step >= dp_step);  // readable, no step lost
  }
  CHECK(killed == 20);
  CHECK(gone_on_by_dp >= 5);
}
