// Power loss after operations around a save: the start after a kill, a run resumed from an earlier step, single files.
#include <cerrno>
#include <limits>

#include "checkpoint/files_support.h"
#include "checkpoint/lossy_disk.h"
#include "checkpoint/scoped_file_ops.h"
#include "engine/checkpoint/checkpoint_folder.h"
#include "support/catch.h"

using namespace dp::test;
namespace fs = std::filesystem;

namespace {

constexpr int kNever = std::numeric_limits<int>::max();

// The process is dead from call number `at` on: no later call reaches the disk.
class KilledOps final : public dp::FileOps {
 public:
  KilledOps(dp::FileOps& disk, int at) : disk_(disk), left_(at) {}

  int open(int folder, const char* path, int flags, mode_t mode) override {
    return dead() ? -1 : disk_.open(folder, path, flags, mode);
  }
  ssize_t write(int file, const void* data, std::size_t bytes) override {
    return dead() ? -1 : disk_.write(file, data, bytes);
  }
  int fsync(int file) override { return dead() ? -1 : disk_.fsync(file); }
  int close(int file) override { return disk_.close(file); }  // the system closes the files of a dead process
  int mkdir(const char* path, mode_t mode) override { return dead() ? -1 : disk_.mkdir(path, mode); }
  int rename(const char* from, const char* to) override { return dead() ? -1 : disk_.rename(from, to); }
  int exchange(const char* a, const char* b) override { return dead() ? -1 : disk_.exchange(a, b); }
  int unlink(const char* path) override { return dead() ? -1 : disk_.unlink(path); }
  int rmdir(const char* path) override { return dead() ? -1 : disk_.rmdir(path); }

 private:
  bool dead() {
    if (left_-- > 0) return false;
    left_ = 0;
    errno = EIO;
    return true;
  }

  dp::FileOps& disk_;
  int left_;
};

// Calls `check` with a folder for each possible content of the disk after a power loss now.
void lose_power(const LossyDisk& disk, const std::string& below,
                const std::function<void(const ScratchFolder&)>& check) {
  for (std::size_t changes = 0; changes <= disk.unsafe_changes(); ++changes)
    for (const bool other_changes : {true, false})
      for (const bool bytes : {true, false}) {
        INFO(changes << " of " << disk.unsafe_changes() << " changes kept, others " << other_changes << ", bytes "
                     << bytes);
        const ScratchFolder after;
        fs::create_directories(after / below);
        disk.restore(after / below, changes, other_changes, bytes);
        check(after);
      }
}

// The step of the newest readable checkpoint; 0 if there is none.
std::int64_t newest_step(const std::string& run) {
  const std::string found = dp::find_checkpoint(run);
  if (found.empty()) return 0;
  const dp::Checkpoint checkpoint = dp::load_checkpoint(found);
  CHECK(is_checkpoint_at(checkpoint, checkpoint.state.step));
  return checkpoint.state.step;
}

// Kills a save before each of its calls in turn. The checkpoint that the next start finds must survive a power loss.
void lose_power_after_a_kill(bool old_exists, bool exchanges) {
  UnsyncedOps unsynced;
  const ScopedFileOps outer(unsynced);
  int finished = 0;  // killed saves that the next start completed
  for (int kill = 0;; ++kill) {
    const ScratchFolder run;
    const std::string folder = run / "checkpoints";
    fs::create_directory(folder);
    if (old_exists) dp::save_checkpoint(folder + "/last", checkpoint_at(1));
    LossyDisk disk(folder, kNever, exchanges);
    KilledOps killed(disk, kill);
    bool saved = false;
    {
      const ScopedFileOps scope(killed);
      saved = outcome_of([&] { dp::save_checkpoint(folder + "/last", checkpoint_at(2)); }).text.empty();
    }
    std::int64_t found = 0;
    {
      const ScopedFileOps scope(disk);
      found = newest_step(run.path());
    }
    INFO("killed before call " << kill << ", found step " << found);
    lose_power(disk, "checkpoints", [&](const ScratchFolder& after) { CHECK(newest_step(after.path()) == found); });
    finished += found == 2 && !saved;
    if (saved) break;
  }
  CHECK(finished >= 3);
}

}  // namespace

TEST_CASE("a killed save that the next start completes survives a power loss") { lose_power_after_a_kill(true, true); }

TEST_CASE("a killed save completed without atomic exchange survives a power loss") {
  lose_power_after_a_kill(true, false);
}

TEST_CASE("a killed first save that the next start completes survives a power loss") {
  lose_power_after_a_kill(false, true);
}

TEST_CASE("checkpoints set aside stay aside after a power loss, and nothing newer reappears") {
  UnsyncedOps unsynced;
  const ScopedFileOps outer(unsynced);
  const ScratchFolder run;
  const std::string folder = run / "checkpoints";
  fs::create_directory(folder);
  for (const int step : {5, 7}) dp::save_checkpoint(folder + "/step-" + std::to_string(step), checkpoint_at(step));
  dp::save_checkpoint(folder + "/last", checkpoint_at(9));
  dp::save_checkpoint(folder + "/best", checkpoint_at(8));
  fs::rename(folder + "/best", folder + "/.best.tmp-" + std::to_string(::getpid()) + "-0");  // left by a kill
  LossyDisk disk(folder, kNever, true);
  {
    const ScopedFileOps scope(disk);
    dp::set_aside_after(run.path(), 5);
  }
  CHECK(is_checkpoint_at(dp::load_checkpoint(folder + "/rewound-last"), 9));
  CHECK(is_checkpoint_at(dp::load_checkpoint(folder + "/rewound-step-7"), 7));
  CHECK(newest_step(run.path()) == 5);
  lose_power(disk, "checkpoints", [&](const ScratchFolder& after) { CHECK(newest_step(after.path()) == 5); });
}

TEST_CASE("after a power loss at any call a replaced file is the old or the new one") {
  UnsyncedOps unsynced;
  const ScopedFileOps outer(unsynced);
  for (const bool old_exists : {true, false})
    for (int end = 0;; ++end) {
      const ScratchFolder folder;
      if (old_exists) dp::write_safetensors(folder / "w", checkpoint_at(1).weights);
      LossyDisk disk(folder.path(), end, true);
      {
        const ScopedFileOps scope(disk);
        dp::write_safetensors(folder / "w", checkpoint_at(2).weights);
      }
      const bool written = end >= disk.calls();
      INFO("power lost before call " << end << " of " << disk.calls());
      lose_power(disk, "", [&](const ScratchFolder& after) {
        if (!fs::exists(after / "w")) {
          CHECK_FALSE((old_exists || written));
          return;
        }
        const float first = dp::read_safetensors(after / "w").at(0).second.data<float>()[0];  // bias: step + 0.5
        CHECK((first == 2.5f || (first == 1.5f && old_exists && !written)));
      });
      if (written) break;
    }
}
