// The search for a checkpoint where the file system fails, and checkpoints that are set aside.
#include <unistd.h>

#include <cerrno>
#include <set>

#include "checkpoint/files_support.h"
#include "checkpoint/scoped_file_ops.h"
#include "engine/checkpoint/checkpoint_folder.h"
#include "support/catch.h"

using namespace dp::test;
namespace fs = std::filesystem;

namespace {

// Fails sync number `at`, every rename, every removal or every exchange with this error. Syncs nothing.
class Failing final : public dp::FileOps {
 public:
  int fsync(int) override { return syncs++ == failing_sync ? (errno = error, -1) : 0; }
  int rename(const char* from, const char* to) override {
    return fails_renames ? (errno = error, -1) : FileOps::rename(from, to);
  }
  int unlink(const char* path) override { return fails_removals ? (errno = error, -1) : FileOps::unlink(path); }
  int exchange(const char* a, const char* b) override {
    return fails_exchanges ? (errno = error, -1) : FileOps::exchange(a, b);
  }

  int error = EIO, syncs = 0, failing_sync = -1;
  bool fails_renames = false, fails_removals = false, fails_exchanges = false;
};

// A run folder with an empty checkpoints/.
struct ScratchRun {
  ScratchFolder scratch;
  std::string folder = scratch / "checkpoints";
  ScratchRun() { fs::create_directory(folder); }
  std::string operator/(const std::string& name) const { return folder + "/" + name; }
  void save(const std::string& name, std::int64_t step) const {
    dp::save_checkpoint(*this / name, checkpoint_at(step));
  }
  // Saves a checkpoint under the name that a killed save of `owner` leaves.
  std::string leave(const std::string& base, std::int64_t step, pid_t owner, int number = 0) const {
    save("step-77", step);
    const std::string left = *this / ("." + base + ".tmp-" + std::to_string(owner) + "-" + std::to_string(number));
    fs::rename(*this / "step-77", left);
    return left;
  }
  bool holds(const std::string& name, std::int64_t step) const {
    return is_checkpoint_at(dp::load_checkpoint(*this / name), step);
  }
  std::set<std::string> names() const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename().string());
    return names;
  }
};

}  // namespace

TEST_CASE("a folder of checkpoints that cannot be listed is an error") {
  const ScratchFolder run;
  write_bytes(run / "checkpoints", "");
  const Outcome outcome = outcome_of([&] { dp::find_checkpoint(run.path()); });
  CHECK(outcome.code == 3);
  CHECK(outcome.text == run / "checkpoints: listing the checkpoints failed: Not a directory");
}

TEST_CASE("if several killed saves left folders, the newest one is completed") {
  Failing ops;
  const ScopedFileOps scope(ops);
  for (const bool current : {true, false}) {
    const ScratchRun run;
    if (current) run.save("last", 5);
    run.leave("last", 7, ::getpid(), 0);
    run.leave("last", 9, ::getpid(), 1);
    run.leave("last", 3, ::getpid(), 2);
    CHECK(dp::find_checkpoint(run.scratch.path()) == run / "last");
    CHECK(run.names() == std::set<std::string>{"last"});
    CHECK(run.holds("last", 9));
  }
}

TEST_CASE("a leftover that cannot be synced is read in its place, and no file is lost") {
  for (const bool current : {true, false})
    for (const int error : {EIO, EINVAL})
      for (int at = 0; at < 5; ++at) {
        INFO("sync " << at << " of an error " << error << ", with a checkpoint " << current);
        Failing ops;
        const ScopedFileOps scope(ops);
        const ScratchRun run;
        if (current) run.save("last", 5);
        const std::string left = run.leave("last", 8, ::getpid());
        ops.error = error, ops.syncs = 0, ops.failing_sync = at;
        // Syncs: of the folder, the manifest, the leftover, and the folder after the rename. A file system may have
        // no sync of folders (EINVAL).
        const bool completed = at == 4 || (error == EINVAL && at != 1);
        CHECK(dp::find_checkpoint(run.scratch.path()) == (completed ? run / "last" : left));
        CHECK(fs::exists(left) == !completed);
        if (!completed) CHECK(is_checkpoint_at(dp::load_checkpoint(left), 8));
        if (completed) CHECK(run.holds("last", 8));
        if (current && !completed) CHECK(run.holds("last", 5));
        CHECK(fs::exists(run / "last") == (completed || current));
      }
}

TEST_CASE("checkpoints and leftovers after a step are set aside, and the others stay") {
  Failing ops;
  const ScopedFileOps scope(ops);
  const ScratchRun run;
  dp::set_aside_after(run.scratch / "none", 0);
  for (const int step : {3, 5, 7}) run.save("step-" + std::to_string(step), step);
  run.save("last", 9);
  run.save("best", 9);
  fs::remove(run / "best/state.json");  // its step is unknown
  run.save("step-4", 4);
  fs::rename(run / "step-4", run / "rewound-last");  // set aside earlier
  run.leave("best", 8, ::getpid());
  run.leave("last", 9, ::getppid());
  dp::set_aside_after(run.scratch.path(), 5);
  const std::set<std::string> rest{"best", "rewound-last", "rewound-step-7", "step-3", "step-5"};
  CHECK(run.names() == rest);
  CHECK(run.holds("rewound-last", 9));
  CHECK(run.holds("rewound-step-7", 7));
  CHECK(run.holds("step-5", 5));
  ops.syncs = 0;
  dp::set_aside_after(run.scratch.path(), 5);
  CHECK(ops.syncs == 0);
  CHECK(run.names() == rest);
}

TEST_CASE("a checkpoint that cannot be set aside is an error that names it") {
  Failing ops;
  const ScopedFileOps scope(ops);
  const ScratchRun run;
  run.save("last", 9);
  ops.error = EACCES, ops.fails_renames = true;
  const Outcome renamed = outcome_of([&] { dp::set_aside_after(run.scratch.path(), 8); });
  CHECK(renamed.code == 7);
  CHECK(renamed.text == run / "last: renaming it failed: Permission denied; choose a folder in which you may write");
  CHECK(run.holds("last", 9));
  ops.fails_renames = false;
  const std::string left = run.leave("last", 9, ::getpid());
  ops.fails_removals = true;
  const Outcome removed = outcome_of([&] { dp::set_aside_after(run.scratch.path(), 8); });
  CHECK(removed.code == 7);
  CHECK_THAT(removed.text, Catch::Contains(": removing it failed: "));
}

TEST_CASE("the step of a checkpoint is read without its other files, and is -1 if there is none") {
  Failing ops;
  const ScopedFileOps scope(ops);
  const ScratchRun run;
  run.save("last", 9);
  CHECK(dp::stated_step(run / "last") == 9);
  fs::remove(run / "last/manifest.json");
  CHECK(dp::stated_step(run / "last") == 9);
  fs::create_directory_symlink("last", run / "best");
  CHECK(dp::stated_step(run / "best") == -1);
  write_bytes(run / "last/state.json", "{}");
  CHECK(dp::stated_step(run / "last") == -1);
  CHECK(dp::stated_step(run / "none") == -1);
}

TEST_CASE("a folder replaces another by two renames where the file system cannot exchange them") {
  for (const int error : {EINVAL, ENOSYS, EOPNOTSUPP, EACCES, EXDEV}) {
    const bool lacks_exchange = error != EACCES && error != EXDEV;
    INFO("error " << error);
    Failing ops;
    const ScopedFileOps scope(ops);
    const ScratchRun run;
    run.save("last", 1);
    ops.error = error, ops.fails_exchanges = true;
    const Outcome outcome = outcome_of([&] { run.save("last", 2); });
    CHECK(outcome.code == (lacks_exchange ? 0 : 7));
    if (!lacks_exchange)
      CHECK_THAT(outcome.text, Catch::StartsWith(run / "last: replacing it with the new folder failed: "));
    CHECK(run.names() == std::set<std::string>{"last"});
    CHECK(run.holds("last", lacks_exchange ? 2 : 1));
  }
  const ScratchFolder folder;
  write_bytes(folder / "file", "");
  const Outcome outcome = outcome_of([&] { dp::put_in_place(folder / "new", {folder / "file", "last"}); });
  CHECK(outcome.code == 7);
  CHECK(outcome.text == folder / "file/last: looking for it failed: Not a directory");
}
