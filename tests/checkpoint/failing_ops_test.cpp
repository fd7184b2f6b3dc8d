#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "checkpoint/files_support.h"
#include "checkpoint/scoped_file_ops.h"
#include "support/catch.h"

using namespace dp::test;
namespace fs = std::filesystem;

namespace {

// Fails call number `at`. If persistent, also fails every later open, write, fsync and mkdir: a full disk stays full,
// but files can be removed.
class FailingOps final : public UnsyncedOps {
 public:
  FailingOps(int at, int error, bool persistent, bool exchanges)
      : at_(at), error_(error), persistent_(persistent), exchanges_(exchanges) {}
  int calls() const { return calls_; }
  bool failed_a_change() const { return failed_a_change_; }  // open, write, fsync, mkdir, rename or exchange

  int open(int folder, const char* path, int flags, mode_t mode) override {
    return fails(true) ? -1 : FileOps::open(folder, path, flags, mode);
  }
  ssize_t pread(int file, void* data, std::size_t bytes, off_t offset) override {
    return fails(false) ? -1 : FileOps::pread(file, data, bytes, offset);
  }
  ssize_t write(int file, const void* data, std::size_t bytes) override {
    return fails(true) ? -1 : FileOps::write(file, data, bytes);
  }
  int fsync(int file) override { return fails(true) ? -1 : UnsyncedOps::fsync(file); }
  int close(int file) override {
    FileOps::close(file);  // the system closes the file even if it reports an error
    return fails(false) ? -1 : 0;
  }
  int mkdir(const char* path, mode_t mode) override { return fails(true) ? -1 : FileOps::mkdir(path, mode); }
  int rename(const char* from, const char* to) override { return change_fails() ? -1 : FileOps::rename(from, to); }
  int exchange(const char* a, const char* b) override {
    if (!exchanges_) return errno = EINVAL, -1;
    return change_fails() ? -1 : FileOps::exchange(a, b);
  }
  int unlink(const char* path) override { return fails(false) ? -1 : FileOps::unlink(path); }
  int rmdir(const char* path) override { return fails(false) ? -1 : FileOps::rmdir(path); }

 private:
  bool fails(bool makes) {
    const int call = calls_++;
    if (call != at_ && !(persistent_ && makes && call > at_)) return false;
    failed_a_change_ = failed_a_change_ || makes;
    errno = error_;
    return true;
  }
  bool change_fails() {
    const bool failed = fails(false);
    failed_a_change_ = failed_a_change_ || failed;
    return failed;
  }

  int at_, error_, calls_ = 0;
  bool persistent_, exchanges_, failed_a_change_ = false;
};

// Every read and write is short and is interrupted before it continues.
class SlowOps final : public dp::FileOps {
 public:
  ssize_t write(int file, const void* data, std::size_t bytes) override {
    if (interrupt_ = !interrupt_; interrupt_) return errno = EINTR, -1;
    return FileOps::write(file, data, bytes < 7 ? bytes : 7);
  }
  ssize_t pread(int file, void* data, std::size_t bytes, off_t offset) override {
    if (interrupt_ = !interrupt_; interrupt_) return errno = EINTR, -1;
    return FileOps::pread(file, data, bytes < 5 ? bytes : 5, offset);
  }

 private:
  bool interrupt_ = false;
};

// Fails each call of a save in turn, with or without an existing checkpoint. Returns the number of calls.
int fail_each_call_of_a_save(bool old_exists, int error, bool persistent, bool exchanges) {
  int refused = 0;
  for (int at = 0;; ++at) {
    const ScratchFolder run;
    const std::string folder = run / "checkpoints/last";
    fs::create_directory(run / "checkpoints");
    UnsyncedOps unsynced;
    if (old_exists) {
      const ScopedFileOps scope(unsynced);
      dp::save_checkpoint(folder, checkpoint_at(1));
    }
    FailingOps ops(at, error, persistent, exchanges);
    Outcome outcome;
    {
      const ScopedFileOps scope(ops);
      outcome = outcome_of([&] { dp::save_checkpoint(folder, checkpoint_at(2)); });
    }
    INFO("call " << at << ", old " << old_exists << ", " << outcome.text);
    const bool saved = outcome.text.empty();
    CHECK_FALSE((saved && ops.failed_a_change()));
    const int hidden = count_hidden(run / "checkpoints");
    if (!saved) {
      ++refused;
      CHECK(outcome.code == 7);
      CHECK_THAT(outcome.text, Catch::Contains(run.path()) && Catch::Contains(std::generic_category().message(error)));
      CHECK(hidden == 0);
      CHECK(fs::exists(folder) == old_exists);
    }
    CHECK(hidden <= 1);  // the old one, if it could not be removed
    const std::string found = dp::find_checkpoint(run.path());
    if (saved || old_exists) {
      REQUIRE(found == folder);
      CHECK(is_checkpoint_at(dp::load_checkpoint(folder), saved ? 2 : 1));
    } else {
      CHECK(found.empty());
    }
    CHECK(count_hidden(run / "checkpoints") == 0);
    if (at >= ops.calls()) {
      CHECK(saved);
      CHECK(refused >= 20);
      return ops.calls();
    }
  }
}

}  // namespace

TEST_CASE("if any call of a save fails, the old checkpoint remains and no temporary file is left") {
  for (const int error : {ENOSPC, EIO})
    for (const bool old_exists : {true, false})
      for (const bool persistent : {true, false}) fail_each_call_of_a_save(old_exists, error, persistent, true);
}

TEST_CASE("if any call of a save fails, the old checkpoint remains on file systems without atomic exchange") {
  const int calls = fail_each_call_of_a_save(true, EIO, false, false);
  CHECK(calls > fail_each_call_of_a_save(true, ENOSPC, true, true));  // two renames replace an exchange
}

TEST_CASE("if any call of writing one file fails, the old file remains and no temporary file is left") {
  const dp::NamedTensors before = checkpoint_at(1).weights, after = checkpoint_at(2).weights;
  int refused = 0;
  for (int at = 0;; ++at) {
    const ScratchFolder folder;
    dp::write_safetensors(folder / "w", before);
    FailingOps ops(at, EIO, false, true);
    Outcome outcome;
    {
      const ScopedFileOps scope(ops);
      outcome = outcome_of([&] { dp::write_safetensors(folder / "w", after); });
    }
    INFO("call " << at << ": " << outcome.text);
    CHECK(count_hidden(folder.path()) == 0);
    const float first = dp::read_safetensors(folder / "w").at(0).second.data<float>()[0];
    CHECK((first == 1.5f || first == 2.5f));
    if (at >= ops.calls()) break;
    if (outcome.text.empty()) continue;  // a failed close of the folder after its fsync
    ++refused;
    CHECK(outcome.code == 7);
    CHECK_THAT(outcome.text, Catch::Contains("Input/output error"));
  }
  CHECK(refused >= 8);
}

TEST_CASE("if any call of a load fails, the load is an error") {
  const ScratchFolder run;
  dp::save_checkpoint(run / "last", checkpoint_at(1));
  int refused = 0;
  for (int at = 0;; ++at) {
    FailingOps ops(at, EIO, false, true);
    const ScopedFileOps scope(ops);
    bool whole = false;
    const Outcome outcome = outcome_of([&] { whole = is_checkpoint_at(dp::load_checkpoint(run / "last"), 1); });
    if (at >= ops.calls()) break;
    CHECK(whole == outcome.text.empty());
    if (whole) continue;  // a failed close of a file that was read
    ++refused;
    CHECK(outcome.code == 3);
    CHECK_THAT(outcome.text, Catch::Contains(run.path()) && Catch::Contains("Input/output error"));
  }
  CHECK(refused >= 10);
}

TEST_CASE("a failed call of a search keeps the only checkpoint, after a save that was killed between two renames") {
  int failed = 0;
  for (int at = 0;; ++at) {
    const ScratchFolder run;
    fs::create_directory(run / "checkpoints");
    dp::save_checkpoint(run / "checkpoints/last", checkpoint_at(1));
    fs::rename(run / "checkpoints/last", run / ("checkpoints/.last.old-" + std::to_string(::getpid()) + "-0"));
    FailingOps ops(at, EIO, false, true);
    {
      const ScopedFileOps scope(ops);
      outcome_of([&] { dp::find_checkpoint(run.path()); });
    }
    INFO("call " << at);
    const std::string found = dp::find_checkpoint(run.path());
    REQUIRE(found == run / "checkpoints/last");
    CHECK(is_checkpoint_at(dp::load_checkpoint(found), 1));
    if (at >= ops.calls()) break;
    ++failed;
  }
  CHECK(failed >= 20);
}

TEST_CASE("interrupted and short reads and writes are continued") {
  const ScratchFolder run;
  SlowOps ops;
  const ScopedFileOps scope(ops);
  dp::save_checkpoint(run / "last", checkpoint_at(3));
  CHECK(is_checkpoint_at(dp::load_checkpoint(run / "last"), 3));
}
