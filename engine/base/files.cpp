#include "engine/base/files.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "dp/error.h"
#include "engine/base/crc32c.h"

namespace dp {
namespace {

constexpr std::size_t kLongestPath = 4096;

std::string sentence(std::string_view path, const std::string& doing, int error) {
  return excerpt(path, kLongestPath) + ": " + doing + " failed: " + std::generic_category().message(error);
}

}  // namespace

std::string excerpt(std::string_view text, std::size_t longest) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string result;
  for (const char c : text.substr(0, longest)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 32 && byte < 127)
      result += c;
    else
      (result += "\\x").append({kHex[byte >> 4], kHex[byte & 15]});
  }
  return text.size() > longest ? result + "..." : result;
}

const char* remedy_of(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT: return "; free some space";
    case EFBIG: return "; raise ulimit -f";
    case EACCES:
    case EROFS: return "; choose a folder in which you may write";
    default: return "";
  }
}

void throw_data(std::string_view path, const std::string& fault) {
  throw Error(ErrorCode::data, excerpt(path, kLongestPath) + ": " + fault);
}
void throw_data_errno(std::string_view path, const std::string& doing, int error) {
  const std::string text = sentence(path, doing, error);
  for (const int no_file : {ENOENT, ENOTDIR, ELOOP, ENXIO, EISDIR})
    if (error == no_file) throw Error(ErrorCode::data, text);
  throw ReadError(ErrorCode::data, text);
}
void throw_io_errno(std::string_view path, const std::string& doing, int error) {
  throw Error(ErrorCode::io, sentence(path, doing, error) + remedy_of(error));
}

int FileHandle::close() {
  const int file = std::exchange(file_, -1);
  return file < 0 ? 0 : file_ops().close(file);
}

int FileOps::open(int folder, const char* path, int flags, mode_t mode) {
  return ::openat(folder, path, flags | O_CLOEXEC, mode);
}
ssize_t FileOps::pread(int file, void* data, std::size_t bytes, off_t offset) {
  return ::pread(file, data, bytes, offset);
}
ssize_t FileOps::write(int file, const void* data, std::size_t bytes) { return ::write(file, data, bytes); }
int FileOps::fsync(int file) { return ::fsync(file); }
int FileOps::close(int file) { return ::close(file); }
int FileOps::mkdir(const char* path, mode_t mode) { return ::mkdir(path, mode); }
int FileOps::rename(const char* from, const char* to) { return ::rename(from, to); }
int FileOps::exchange(const char* a, const char* b) { return ::renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE); }
int FileOps::unlink(const char* path) { return ::unlink(path); }
int FileOps::rmdir(const char* path) { return ::rmdir(path); }
std::int64_t FileOps::free_bytes(const char* path) {
  struct statvfs system {};
  if (::statvfs(path, &system) != 0) return -1;
  return static_cast<std::int64_t>(system.f_bavail * system.f_frsize);
}

namespace {
FileOps system_ops;
std::atomic<FileOps*> current{&system_ops};
}  // namespace

FileOps& file_ops() { return *current; }
void set_file_ops(FileOps* ops) { current = ops ? ops : &system_ops; }

std::string read_file(const std::string& path) {
  const FileHandle file(file_ops().open(AT_FDCWD, path.c_str(), O_RDONLY | O_NONBLOCK, 0));
  if (!file && errno == ENOENT) return {};
  if (!file) throw_io_errno(path, "opening it", errno);
  std::string text;
  constexpr std::size_t kBlock = 64 << 10;
  for (std::size_t got = 0;; got = text.size()) {
    text.resize(got + kBlock);
    ssize_t done = 0;
    do done = file_ops().pread(file.get(), text.data() + got, kBlock, static_cast<off_t>(got));
    while (done < 0 && errno == EINTR);
    if (done < 0) throw_io_errno(path, "reading", errno);
    text.resize(got + static_cast<std::size_t>(done));
    if (done == 0) return text;
  }
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  std::filesystem::directory_iterator entry(folder, error);
  if (error == std::errc::no_such_file_or_directory) return names;
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error))
    names.push_back(entry->path().filename().string());
  if (error) throw_io_errno(folder, "listing the folder", error.value());
  return names;
}

FileWriter::FileWriter(const std::string& path)
    : path_(path), file_(file_ops().open(AT_FDCWD, path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0644)) {
  if (!file_) throw_io_errno(path_, "creating it", errno);
}

void FileWriter::write(std::span<const std::byte> bytes) {
  crc_ = crc32c(bytes, crc_);
  bytes_ += bytes.size();
  while (!bytes.empty()) {
    const ssize_t done = file_ops().write(file_.get(), bytes.data(), bytes.size());
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) throw_io_errno(path_, "writing", done < 0 ? errno : EIO);
    bytes = bytes.subspan(static_cast<std::size_t>(done));
  }
}

void FileWriter::finish(bool sync) {
  if (sync && file_ops().fsync(file_.get()) != 0) throw_io_errno(path_, "writing it to the disk", errno);
  if (file_.close() != 0) throw_io_errno(path_, "closing it", errno);
}

PathParts split_path(const std::string& path) {
  const std::size_t end = path.find_last_not_of('/');
  const std::size_t slash = end == std::string::npos ? end : path.rfind('/', end);
  PathParts parts;
  if (end != std::string::npos) parts.name = path.substr(slash + 1, end - slash);  // npos + 1 is 0
  parts.parent = slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
  if (parts.name.empty() || parts.name == "." || parts.name == ".." || path.find('\0') != std::string::npos)
    throw Error(ErrorCode::usage, "'" + excerpt(path) + "' does not end in a file or folder name");
  return parts;
}

std::string temporary_sibling(const PathParts& target, const char* tag) {
  static std::atomic<unsigned> count{0};
  struct stat status {};
  std::string path;
  do
    path = target.sibling("." + target.name + "." + tag + "-" + std::to_string(::getpid()) + "-" +
                          std::to_string(count++));
  while (::lstat(path.c_str(), &status) == 0);  // left by an earlier process with the same id
  return path;
}

void sync_file(const std::string& path) {
  FileHandle file(file_ops().open(AT_FDCWD, path.c_str(), O_RDONLY | O_NOFOLLOW, 0));
  if (!file) throw_io_errno(path, "opening the file", errno);
  if (file_ops().fsync(file.get()) != 0) throw_io_errno(path, "writing the file to the disk", errno);
}

int try_sync_folder(const std::string& path) {
  const FileHandle folder(file_ops().open(AT_FDCWD, path.c_str(), O_RDONLY | O_DIRECTORY, 0));
  if (!folder) return errno;
  // Some network file systems do not support fsync on folders and return EINVAL.
  return file_ops().fsync(folder.get()) == 0 || errno == EINVAL ? 0 : errno;
}

void sync_folder(const std::string& path) {
  if (const int error = try_sync_folder(path)) throw_io_errno(path, "writing the folder to the disk", error);
}

void replace_file(const std::string& path, const std::function<void(FileWriter&)>& fill, bool sync) {
  const PathParts parts = split_path(path);
  const std::string temporary = temporary_sibling(parts, "tmp");
  try {
    FileWriter file(temporary);
    fill(file);
    file.finish(sync);
    if (file_ops().rename(temporary.c_str(), parts.path().c_str()) != 0)
      throw_io_errno(parts.path(), "moving the new file there", errno);
  } catch (...) {
    remove_tree(temporary);
    throw;
  }
  if (sync) sync_folder(parts.parent);
}

void remove_unfinished(const std::string& path) noexcept try {
  const PathParts parts = split_path(path);
  const std::string prefix = "." + parts.name + ".tmp-";  // followed by <pid>-<n>, see temporary_sibling()
  const auto is_number = [](std::string_view text) {
    return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
  };
  for (const std::string& name : names_in(parts.parent)) {
    if (!name.starts_with(prefix)) continue;
    const std::string_view numbers = std::string_view(name).substr(prefix.size());
    const std::size_t dash = std::min(numbers.find('-'), numbers.size() - 1);
    if (is_number(numbers.substr(0, dash)) && is_number(numbers.substr(dash + 1)))
      file_ops().unlink(parts.sibling(name).c_str());
  }
} catch (...) {
}

bool remove_tree(const std::string& path) noexcept try {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) return errno == ENOENT;
  if (!S_ISDIR(status.st_mode)) return file_ops().unlink(path.c_str()) == 0;
  bool all = true;
  for (const std::string& name : names_in(path)) all = remove_tree(path + "/" + name) && all;
  return file_ops().rmdir(path.c_str()) == 0 && all;
} catch (...) {
  return false;
}

namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const std::string& path, int error) {
  const char* const why = error == ENXIO ? "it is a pipe or socket without a reader" : std::strerror(error);
  throw Error(ErrorCode::io,
              "cannot write '" + path + "': " + why + "; check the path, its permissions and the free space");
}

// A terminal, a pipe or /dev/null is written in place.
bool is_special(const std::string& path) {
  std::error_code error;
  return fs::exists(path, error) && !fs::is_regular_file(path, error) && !fs::is_directory(path, error);
}

constexpr int kReaderPatience = 10'000;  // milliseconds to wait for a pipe's reader

// O_NONBLOCK: opening a pipe without a reader fails instead of blocking.
FileHandle open_special(const std::string& path) {
  FileHandle file(::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!file) fail(path, errno);
  return file;
}

void write_through(const std::string& path, std::string_view text) {
  const FileHandle file = open_special(path);
  while (!text.empty()) {
    const ssize_t wrote = ::write(file.get(), text.data(), text.size());
    if (wrote >= 0) text.remove_prefix(static_cast<std::size_t>(wrote));
    if (wrote >= 0 || errno == EINTR) continue;
    pollfd ready{file.get(), POLLOUT, 0};
    if (errno != EAGAIN) fail(path, errno);
    if (::poll(&ready, 1, kReaderPatience) == 0) fail(path, ETIMEDOUT);
  }
}

}  // namespace

void write_file_atomically(const std::string& path, const std::string& text) {
  if (is_special(path)) return write_through(path, text);
  std::error_code error;
  const fs::path target = fs::canonical(path, error);  // a symbolic link is kept; its target is replaced
  replace_file(error ? path : target.string(), [&](FileWriter& file) { file.write(text); });
}

FileHandle require_writable(const std::string& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) fail(path, EISDIR);
  if (is_special(path)) return open_special(path);
  const std::string temporary = temporary_sibling(split_path(path), "probe");
  const FileHandle file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!file) fail(path, errno);
  ::unlink(temporary.c_str());
  return {};
}

}  // namespace dp
