// The run folder: its lock, its metrics file, and atomic file creation.
#include "engine/train/record/run_folder.h"
#include "engine/base/files.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <map>

#include "checkpoint/scoped_file_ops.h"
#include "support/catch.h"
#include "support/temporary_folder.h"
#include "train/expect_error.h"

namespace {

using dp::ErrorCode;
using dp::RunFolder;
using dp::test::expect_error;
using dp::test::read_text;
using dp::test::TemporaryFolder;
using dp::test::write_text;
using nlohmann::ordered_json;

TEST_CASE("a run folder is locked by one run") {
  const TemporaryFolder temp;
  const std::string path = temp / "a/run";
  {
    const RunFolder first(path);
    CHECK(first.path() == path);
    expect_error(ErrorCode::usage, {path, "another run", "--output-dir"}, [&] { RunFolder second(path + "/"); });
    CHECK_FALSE(dp::FolderLock(path).held());
  }
  const RunFolder third(path);  // the destructor released the lock
  CHECK_FALSE(third.has_checkpoints());
}

TEST_CASE("an unused run folder is removed with the parents made for it, and a used one stays without its lock") {
  const TemporaryFolder temp;
  { const RunFolder folder(temp / "a/b/c"); }
  CHECK(std::filesystem::is_empty(temp.path()));
  write_text(temp / "notes", "mine");
  { const RunFolder folder(temp.path()); }
  CHECK(read_text(temp / "notes") == "mine");
  CHECK_FALSE(std::filesystem::exists(temp / "checkpoints"));
  std::filesystem::create_directory(temp / "config.toml");  // blocks the name
  expect_error(ErrorCode::io, {"config.toml"}, [&] { RunFolder(temp.path()).begin("", std::nullopt); });
  CHECK_FALSE(std::filesystem::exists(temp / "metrics.jsonl"));
  std::filesystem::remove(temp / "config.toml");
  std::filesystem::create_directory(temp / "metrics.csv");  // blocks the second file of a run
  expect_error(ErrorCode::io, {"metrics.csv"}, [&] { RunFolder(temp.path()).begin("", std::nullopt); });
  CHECK_FALSE(std::filesystem::exists(temp / "metrics.jsonl"));
  RunFolder(temp / "a/b").begin("", std::nullopt);
  CHECK(std::filesystem::exists(temp / "a/b/config.toml"));
  CHECK_FALSE(std::filesystem::exists(temp / "a/b/.lock"));
  write_text(temp / "a/b/.lock", "");  // left by a killed run
  RunFolder(temp / "a/b").begin("", std::nullopt);
  CHECK(std::filesystem::exists(temp / "a/b/.lock"));
}

TEST_CASE("temporary files of killed runs are removed when the next run begins, and nothing else is") {
  const TemporaryFolder temp;
  const std::vector<std::string> leftovers = {".config.toml.tmp-1-0",  ".config.toml.tmp-4194303-17",
                                              ".summary.json.tmp-7-1", ".env.json.tmp-7-1",
                                              ".report.html.tmp-7-1",  ".predictions.json.tmp-7-1"};
  for (const std::string& left : leftovers) write_text(temp / left, "half");
  const std::vector<std::string> others = {"config.toml.tmp-1-0",  ".config.toml.tmp",    ".config.toml.tmp-1",
                                           ".config.toml.tmp-1-",  ".config.toml.tmp--1", ".config.toml.tmp-1-x",
                                           ".config.toml.bak-1-0", ".notes.tmp-1-0",      ".metrics.jsonl.tmp-1-0"};
  for (const std::string& other : others) write_text(temp / other, "mine");
  std::filesystem::create_directory(temp / ".config.toml.tmp-1-1");  // a run never creates such a folder
  {
    RunFolder folder(temp.path());
    CHECK(std::filesystem::exists(temp / ".config.toml.tmp-1-0"));
    folder.begin("", std::nullopt);
  }
  for (const std::string& left : leftovers) CHECK_FALSE(std::filesystem::exists(temp / left));
  for (const std::string& other : others) CHECK(read_text(temp / other) == "mine");
  CHECK(std::filesystem::exists(temp / ".config.toml.tmp-1-1"));
}

// Lists new folders until their parent is synced. A power loss would remove them.
class CreatedFolders : public dp::FileOps {
 public:
  int open(int folder, const char* path, int flags, mode_t mode) override {
    const int file = FileOps::open(folder, path, flags, mode);
    if (file >= 0) opened_[file] = path;
    return file;
  }
  int fsync(int file) override {
    std::erase_if(unsynced, [&](const std::string& path) { return dp::split_path(path).parent == opened_[file]; });
    return FileOps::fsync(file);
  }
  int mkdir(const char* path, mode_t mode) override {
    const int result = FileOps::mkdir(path, mode);
    if (result == 0) unsynced.emplace_back(path), ++created;
    return result;
  }

  int created = 0;
  std::vector<std::string> unsynced;

 private:
  std::map<int, std::string> opened_;
};

TEST_CASE("the parents of a new run folder are synced, so that it survives a power loss") {
  const TemporaryFolder temp;
  CreatedFolders ops;
  {
    const dp::test::ScopedFileOps scope(ops);
    RunFolder(temp / "a/b/c").begin("", std::nullopt);
  }
  CHECK(ops.created == 4);  // the three of the path, and checkpoints
  CHECK(ops.unsynced.empty());
}

TEST_CASE("a run folder is removed again if its parent cannot be synced") {
  class FailingFsync : public dp::FileOps {
   public:
    int fsync(int) override { return errno = EIO, -1; }
  } failing;
  const TemporaryFolder temp;
  {
    const dp::test::ScopedFileOps scope(failing);
    expect_error(ErrorCode::io, {"a/b", "--output-dir"}, [&] { RunFolder folder(temp / "a/b"); });
  }
  CHECK_FALSE(std::filesystem::exists(temp / "a"));
}

TEST_CASE("a run folder may have a parent that cannot be read") {
  class Unreadable : public dp::FileOps {
   public:
    int open(int folder, const char* path, int flags, mode_t mode) override {
      if ((flags & O_DIRECTORY) != 0) return errno = EACCES, -1;
      return FileOps::open(folder, path, flags, mode);
    }
  } unreadable;
  const TemporaryFolder temp;
  const dp::test::ScopedFileOps scope(unreadable);
  const RunFolder folder(temp / "a/b");
  CHECK(std::filesystem::exists(temp / "a/b/checkpoints"));
}

TEST_CASE("an empty path writes nothing") {
  RunFolder none("");
  none.begin("x", std::nullopt);
  none.append_metrics({{"step", 1}});
  CHECK_FALSE(none.writes());
}

TEST_CASE("a run folder that cannot be created is an I/O error") {
  const TemporaryFolder temp;
  write_text(temp / "file", "x");
  expect_error(ErrorCode::io, {temp / "file", "--output-dir"}, [&] { RunFolder folder(temp / "file"); });
  expect_error(ErrorCode::io, {temp / "file/run"}, [&] { RunFolder folder(temp / "file/run"); });
  expect_error(ErrorCode::io, {"/proc/dp_run"}, [] { RunFolder folder("/proc/dp_run"); });
}

TEST_CASE("metrics continue after the resumed step") {
  const TemporaryFolder temp;
  const std::string metrics = temp / "metrics.jsonl";
  {
    RunFolder folder(temp.path());
    folder.begin("a = 1\n", std::nullopt);
    for (const int step : {1, 2, 3}) folder.append_metrics({{"kind", "train"}, {"step", step}});
    CHECK(read_text(temp / "config.toml") == "a = 1\n");
  }
  const std::string whole = read_text(metrics);
  CHECK(whole == "{\"kind\":\"train\",\"step\":1}\n{\"kind\":\"train\",\"step\":2}\n{\"kind\":\"train\",\"step\":3}\n");
  write_text(metrics, whole + R"({"kind":"train","st)");  // truncated by a kill
  write_text(temp / "summary.json", "{}");
  {
    RunFolder folder(temp.path());
    folder.begin("", 2);
    folder.append_metrics({{"step", 3}, {"again", true}});
    CHECK_FALSE(std::filesystem::exists(temp / "summary.json"));
  }
  CHECK(read_text(metrics) ==
        "{\"kind\":\"train\",\"step\":1}\n{\"kind\":\"train\",\"step\":2}\n{\"step\":3,\"again\":true}\n");
  {
    RunFolder folder(temp.path());
    folder.begin("", 9);  // no later records
  }
  CHECK(dp::test::lines_of(read_text(metrics)).size() == 3);
  {
    RunFolder folder(temp.path());
    folder.begin("", std::nullopt);  // a new run
  }
  CHECK(read_text(metrics).empty());
}

TEST_CASE("a config file is never overwritten: other options get the next number") {
  const TemporaryFolder temp;
  const auto begin = [&](const std::string& config, std::optional<std::int64_t> step) {
    RunFolder(temp.path()).begin(config, step);
  };
  begin("a = 1\n", std::nullopt);
  begin("a = 1\n", 3);
  CHECK_FALSE(std::filesystem::exists(temp / "config.2.toml"));
  begin("a = 2\n", 4);
  begin("a = 2\n", 5);
  begin("a = 1\n", 6);
  CHECK(read_text(temp / "config.toml") == "a = 1\n");
  CHECK(read_text(temp / "config.2.toml") == "a = 2\n");
  CHECK(read_text(temp / "config.3.toml") == "a = 1\n");
  CHECK_FALSE(std::filesystem::exists(temp / "config.4.toml"));
  write_text(temp / "another", "mine");
  std::filesystem::create_symlink("another", temp / "config.4.toml");
  begin("a = 4\n", 7);
  CHECK(read_text(temp / "another") == "mine");
  CHECK(read_text(temp / "config.5.toml") == "a = 4\n");
}

TEST_CASE("a symbolic link in place of the metrics file is not followed") {
  const TemporaryFolder temp;
  write_text(temp / "precious", "keep");
  std::filesystem::create_symlink(temp / "precious", temp / "metrics.jsonl");
  RunFolder folder(temp.path());
  expect_error(ErrorCode::io, {"metrics.jsonl"}, [&] { folder.begin("", std::nullopt); });
  CHECK(read_text(temp / "precious") == "keep");
}

TEST_CASE("symbolic links in place of files that a run writes later are removed, not followed") {
  const TemporaryFolder temp;
  const std::string run = temp / "run";
  std::filesystem::create_directory(run);
  write_text(temp / "precious", "keep");
  for (const char* name : {"env.json", "report.html", "summary.json", "predictions.json"})
    std::filesystem::create_symlink(temp / "precious", run + "/" + name);
  RunFolder folder(run);
  folder.begin("", std::nullopt);
  for (const char* name : {"env.json", "report.html", "summary.json", "predictions.json"})
    CHECK_FALSE(std::filesystem::exists(std::filesystem::symlink_status(run + "/" + name)));
  CHECK(read_text(temp / "precious") == "keep");
}

TEST_CASE("a file is replaced atomically, and a link to it stays a link") {
  const TemporaryFolder temp;
  dp::write_file_atomically(temp / "s.json", "one");
  std::filesystem::create_symlink(temp / "s.json", temp / "link");
  dp::require_writable(temp / "link");
  dp::write_file_atomically(temp / "link", "two");
  CHECK(read_text(temp / "s.json") == "two");
  CHECK(std::filesystem::is_symlink(temp / "link"));
  int entries = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(temp.path())) ++entries;
  CHECK(entries == 2);  // no temporary file remains
}

TEST_CASE("a device or a pipe is written to, never replaced") {
  const TemporaryFolder temp;
  dp::require_writable("/dev/null");
  dp::write_file_atomically("/dev/null", "x");
  CHECK(std::filesystem::is_character_file("/dev/null"));
}

TEST_CASE("a path that cannot be written is detected in advance") {
  const TemporaryFolder temp;
  expect_error(ErrorCode::io, {temp.path()}, [&] { dp::require_writable(temp.path()); });
  expect_error(ErrorCode::io, {"none/s.json"}, [&] { dp::require_writable(temp / "none/s.json"); });
  expect_error(ErrorCode::io, {"/none/"}, [&] { dp::write_file_atomically(temp / "none/s.json", ""); });
}

}  // namespace
