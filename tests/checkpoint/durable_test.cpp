// Creation and removal of files and folders, their names and their sync.
#include "engine/base/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "checkpoint/files_support.h"
#include "checkpoint/scoped_file_ops.h"
#include "engine/base/crc32c.h"
#include "support/catch.h"

using namespace dp::test;
namespace fs = std::filesystem;

namespace {

// A file system whose writes return 0 bytes without an error.
class StuckOps final : public dp::FileOps {
 public:
  ssize_t write(int, const void*, std::size_t) override {
    if (++writes_ > 100) throw std::logic_error("writes again and again");
    return 0;
  }

 private:
  int writes_ = 0;
};

// A folder in which the entries named "kept" cannot be removed, or in which no sync works.
class StubbornOps final : public dp::FileOps {
 public:
  int unlink(const char* path) override { return is_kept(path) ? (errno = EACCES, -1) : FileOps::unlink(path); }
  int rmdir(const char* path) override { return is_kept(path) ? (errno = EACCES, -1) : FileOps::rmdir(path); }
  int fsync(int) override { return errno = error_, -1; }
  void fail_syncs_with(int error) { error_ = error; }

 private:
  static bool is_kept(const std::string& path) { return path.ends_with("/kept"); }
  int error_ = EIO;
};

}  // namespace

TEST_CASE("a new file never replaces another and follows no link") {
  const ScratchFolder folder;
  write_bytes(folder / "file", "precious");
  fs::create_symlink(folder / "file", folder / "link");
  fs::create_symlink(folder / "elsewhere", folder / "dangling");
  for (const char* name : {"file", "link", "dangling"}) {
    const Outcome outcome = outcome_of([&] { dp::FileWriter file(folder / name); });
    CHECK(outcome.code == 7);
    CHECK_THAT(outcome.text, Catch::Contains("File exists"));
  }
  CHECK(read_bytes(folder / "file") == "precious");
  CHECK_FALSE(fs::exists(folder / "elsewhere"));
}

TEST_CASE("a temporary name lies beside its target and is unused") {
  const ScratchFolder folder;
  const dp::PathParts target = dp::split_path(folder / "last");
  const auto number_of = [&](const std::string& path) {
    const std::string begin = folder / (".last.tmp-" + std::to_string(::getpid()) + "-");
    REQUIRE(path.starts_with(begin));
    return std::stoi(path.substr(begin.size()));
  };
  const int first = number_of(dp::temporary_sibling(target, "tmp"));
  const std::string taken = folder / (".last.tmp-" + std::to_string(::getpid()) + "-");
  write_bytes(taken + std::to_string(first + 1), "");
  fs::create_symlink("nothing", taken + std::to_string(first + 2));
  CHECK(number_of(dp::temporary_sibling(target, "tmp")) == first + 3);
}

TEST_CASE("a write that writes nothing is an I/O error, not an endless loop") {
  const ScratchFolder folder;
  StuckOps ops;
  const ScopedFileOps scope(ops);
  const Outcome outcome = outcome_of([&] { dp::FileWriter(folder / "file").write("text"); });
  CHECK(outcome.code == 7);
  CHECK_THAT(outcome.text, Catch::Contains("Input/output error"));
}

TEST_CASE("a path is split into its folder and its name") {
  struct {
    const char *path, *parent, *name;
  } const rows[] = {{"last", ".", "last"},        {"./last", ".", "last"}, {"run/last/", "run", "last"},
                    {"/last", "/", "last"},       {"a//b", "a/", "b"},     {"/run/a/b///", "/run/a", "b"},
                    {"../..last", "..", "..last"}};
  for (const auto& row : rows) {
    INFO(row.path);
    const dp::PathParts parts = dp::split_path(row.path);
    CHECK(parts.parent == row.parent);
    CHECK(parts.name == row.name);
    CHECK(parts.path() == std::string(row.parent) + "/" + row.name);
  }
  for (const std::string& nameless :
       {std::string(), std::string("//"), std::string("a/."), std::string("a/../"), std::string("a\0b", 3)}) {
    const Outcome outcome = outcome_of([&] { dp::split_path(nameless); });
    CHECK(outcome.code == 2);
    CHECK_THAT(outcome.text, Catch::Contains("does not end in a file or folder name"));
  }
}

TEST_CASE("remove_tree() does not follow links, and returns false if it could not remove everything") {
  const ScratchFolder folder;
  fs::create_directories(folder / "tree/kept/deep");
  fs::create_directories(folder / "other");
  write_bytes(folder / "other/file", "precious");
  fs::create_directory_symlink(folder / "other", folder / "tree/link");
  for (const char* name : {"tree/a", "tree/kept/kept", "tree/kept/deep/b"}) write_bytes(folder / name, "");
  {
    StubbornOps ops;
    const ScopedFileOps scope(ops);
    CHECK_FALSE(dp::remove_tree(folder / "tree"));
    CHECK(fs::exists(folder / "tree/kept/kept"));
    for (const char* gone : {"tree/a", "tree/link", "tree/kept/deep"})
      CHECK_FALSE(fs::exists(fs::symlink_status(folder / gone)));
    CHECK_FALSE(dp::remove_tree(folder / "tree/kept/kept"));
    fs::remove(folder / "tree/kept/kept");
    CHECK_FALSE(dp::remove_tree(folder / "tree/kept"));  // empty, but it cannot be removed
  }
  CHECK(dp::remove_tree(folder / "tree"));
  CHECK_FALSE(fs::exists(folder / "tree"));
  CHECK(dp::remove_tree(folder / "tree"));  // nothing is left of it
  CHECK(dp::remove_tree(folder / "other/file"));
  write_bytes(folder / "other/file", "");
  CHECK_FALSE(dp::remove_tree(folder / "other/file/x"));  // a file is no folder
}

TEST_CASE("a sync that fails is an error that names the file or the folder") {
  const ScratchFolder folder;
  write_bytes(folder / "file", "");
  fs::create_symlink("file", folder / "link");
  const auto sync_file = [&](const std::string& name) {
    return outcome_of([&] { dp::sync_file(folder / name); }).text;
  };
  const auto sync_folder = [&](const std::string& name) {
    return outcome_of([&] { dp::sync_folder(folder / name); }).text;
  };
  CHECK(sync_file("file").empty());
  CHECK(sync_folder(".").empty());
  CHECK(sync_file("none") == folder / "none: opening the file failed: No such file or directory");
  CHECK(sync_file("link") == folder / "link: opening the file failed: Too many levels of symbolic links");
  CHECK(sync_folder("none") == folder / "none: writing the folder to the disk failed: No such file or directory");
  CHECK(dp::try_sync_folder(folder / "none") == ENOENT);
  CHECK(dp::try_sync_folder(folder / "file") == ENOTDIR);
  StubbornOps ops;
  const ScopedFileOps scope(ops);
  CHECK(sync_file("file") == folder / "file: writing the file to the disk failed: Input/output error");
  CHECK(sync_folder(".") == folder / ".: writing the folder to the disk failed: Input/output error");
  ops.fail_syncs_with(EINVAL);  // a file system without fsync on folders
  CHECK(sync_folder(".").empty());
  CHECK(sync_file("file") == folder / "file: writing the file to the disk failed: Invalid argument");
}

TEST_CASE("new files and folders have the usual permissions and are closed in child programs") {
  const ScratchFolder folder;
  const mode_t before = ::umask(0);
  dp::save_checkpoint(folder / "last", checkpoint_at(1));
  ::umask(before);
  CHECK(fs::status(folder / "last").permissions() == fs::perms(0777));
  for (const char* name : {"manifest.json", "model.safetensors", "optimizer.safetensors", "state.json"})
    CHECK(fs::status(folder / "last/" + name).permissions() == fs::perms(0644));
  dp::FileHandle file(dp::file_ops().open(AT_FDCWD, (folder / "last/state.json").c_str(), O_RDONLY, 0));
  REQUIRE(file);
  CHECK((::fcntl(file.get(), F_GETFD) & FD_CLOEXEC) != 0);
  CHECK(file.close() == 0);
  CHECK_FALSE(file);
  CHECK(file.close() == 0);
}

TEST_CASE("a file has one owner, which closes it") {
  const ScratchFolder folder;
  write_bytes(folder / "file", "");
  const auto is_open = [](int file) { return ::fcntl(file, F_GETFD) >= 0; };
  const int one = ::open((folder / "file").c_str(), O_RDONLY), two = ::open((folder / "file").c_str(), O_RDONLY);
  {
    dp::FileHandle first(one), second(std::move(first)), other(two);
    CHECK((!first && first.get() == -1 && second.get() == one));
    other = std::move(second);
    CHECK(other.get() == one);
    CHECK(other.release() == one);
    CHECK((!other && other.get() == -1));
  }
  CHECK(is_open(one));
  CHECK_FALSE(is_open(two));
  { const dp::FileHandle last(one); }
  CHECK_FALSE(is_open(one));
}

TEST_CASE("a writer counts the bytes and the checksum of all that it wrote") {
  const ScratchFolder folder;
  dp::FileWriter file(folder / "file");
  CHECK((file.bytes() == 0 && file.crc() == 0 && file.path() == folder / "file"));
  file.write("one ");
  file.write(std::string_view("two"));
  file.finish();
  CHECK(file.bytes() == 7);
  CHECK(file.crc() == dp::crc32c(std::as_bytes(std::span(std::string_view("one two")))));
  CHECK(read_bytes(folder / "file") == "one two");
}
