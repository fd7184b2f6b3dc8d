#include <fcntl.h>

#include "checkpoint/files_support.h"
#include "checkpoint/lossy_disk.h"
#include "checkpoint/scoped_file_ops.h"
#include "support/catch.h"

using namespace dp::test;
namespace fs = std::filesystem;

namespace {

// Loses power before each call of a save in turn, with every possible disk content. The old or the new checkpoint must
// be found.
void lose_power_at_each_call(bool old_exists, bool exchanges) {
  UnsyncedOps unsynced;
  const ScopedFileOps outer(unsynced);
  int kept_old = 0, kept_new = 0, kept_none = 0;
  for (int end = 0;; ++end) {
    const ScratchFolder run;
    const std::string folder = run / "checkpoints";
    fs::create_directory(folder);
    if (old_exists) dp::save_checkpoint(folder + "/last", checkpoint_at(1));
    LossyDisk disk(folder, end, exchanges);
    {
      const ScopedFileOps scope(disk);
      dp::save_checkpoint(folder + "/last", checkpoint_at(2));
    }
    for (std::size_t changes = 0; changes <= disk.unsafe_changes(); ++changes)
      for (const bool other_changes : {true, false})
        for (const bool bytes : {true, false}) {
          const ScratchFolder after;
          fs::create_directory(after / "checkpoints");
          disk.restore(after / "checkpoints", changes, other_changes, bytes);
          INFO("power lost before call " << end << ", " << changes << " of " << disk.unsafe_changes()
                                         << " changes kept, others " << other_changes << ", bytes " << bytes);
          const std::string found = dp::find_checkpoint(after.path());
          if (found.empty()) {
            ++kept_none;
            CHECK(end < disk.calls());
            continue;
          }
          const dp::Checkpoint checkpoint = dp::load_checkpoint(found);
          (checkpoint.state.step == 1 ? kept_old : kept_new)++;
          CHECK((is_checkpoint_at(checkpoint, 1) || is_checkpoint_at(checkpoint, 2)));
          CHECK(found == after / "checkpoints/last");
          CHECK(count_hidden(after / "checkpoints") == 0);
          if (end >= disk.calls()) CHECK(checkpoint.state.step == 2);  // the save returned
        }
    if (end >= disk.calls()) break;
  }
  CHECK((kept_none == 0) == old_exists);
  CHECK((kept_old > 10) == old_exists);
  CHECK(kept_new > 10);
}

}  // namespace

TEST_CASE("after a power loss at any call the old or the new checkpoint is readable") {
  lose_power_at_each_call(true, true);
}

TEST_CASE("after a power loss the old or the new checkpoint is readable without atomic exchange") {
  lose_power_at_each_call(true, false);
}

TEST_CASE("after a power loss in the first save there is no checkpoint or a whole one") {
  lose_power_at_each_call(false, true);
}

// The model must be able to lose data: a save without fsync loses it.
TEST_CASE("the lossy disk loses everything that was not synced") {
  const ScratchFolder root, after;
  LossyDisk disk(root.path(), 1000, true);
  dp::FileOps& ops = disk;
  const int file = ops.open(AT_FDCWD, (root / "f").c_str(), O_WRONLY | O_CREAT, 0600);
  REQUIRE(file >= 0);
  REQUIRE(ops.write(file, "abc", 3) == 3);
  ops.close(file);
  REQUIRE(ops.rename((root / "f").c_str(), (root / "g").c_str()) == 0);
  REQUIRE(disk.unsafe_changes() == 2);
  disk.restore(after.path(), 0, true, true);
  CHECK(fs::is_empty(after.path()));
  disk.restore(after.path(), 1, true, true);
  CHECK(read_bytes(after / "f") == "abc");
  disk.restore(after.path(), 2, true, false);
  CHECK(read_bytes(after / "g").empty());
}
