#include "checkpoint/kill_during_save.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <new>

#include "checkpoint/files_support.h"
#include "checkpoint/scoped_file_ops.h"
#include "dp/random.h"
#include "support/catch.h"
#include "support/patience.h"

namespace dp::test {
namespace {

// Shared by parent and child.
struct Shared {
  std::atomic<std::int64_t> saved{0};  // the step of the last save that returned
};

class NoExchangeOps final : public FileOps {
 public:
  int exchange(const char*, const char*) override { return errno = EINVAL, -1; }
};

[[noreturn]] void save_until_killed(const std::string& folder, std::int64_t step, Shared& shared) {
  try {
    for (;;) {
      save_checkpoint(folder, checkpoint_at(++step));
      shared.saved = step;
    }
  } catch (...) {
    ::_exit(1);
  }
}

}  // namespace

void kill_during_save(int times, bool exchanges) {
  NoExchangeOps no_exchange;
  const ScopedFileOps scope(exchanges ? file_ops() : no_exchange);
  const ScratchFolder run;
  std::filesystem::create_directory(run / "checkpoints");
  const std::string folder = run / "checkpoints/last";
  void* memory = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  Shared& shared = *new (memory) Shared;

  save_checkpoint(folder, checkpoint_at(1));
  shared.saved = 1;
  Random random(4, RandomUse::synthetic);
  std::int64_t step = 1;
  for (int kill = 0; kill < times; ++kill) {
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) save_until_killed(folder, step, shared);
    // Some children get far enough on a loaded machine, too.
    if (const auto begin = std::chrono::steady_clock::now(); kill % 4 == 0)
      while (shared.saved <= step && in_time(begin, 1)) ::usleep(100);
    ::usleep(random.below(15000));
    ::kill(child, SIGKILL);
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    REQUIRE(WIFSIGNALED(status));  // the signal ended it, not an error

    const std::string found = find_checkpoint(run.path());
    REQUIRE(found == folder);
    const Checkpoint checkpoint = load_checkpoint(found);
    REQUIRE(checkpoint.state.step >= shared.saved);
    REQUIRE(checkpoint.state.step <= shared.saved + 1);
    REQUIRE(is_checkpoint_at(checkpoint, checkpoint.state.step));
    REQUIRE(count_hidden(run / "checkpoints") == 0);
    step = checkpoint.state.step;
    shared.saved = step;
  }
  CHECK(step > times / 10);  // the children saved checkpoints
  ::munmap(memory, sizeof(Shared));
}

}  // namespace dp::test
