#include "engine/base/durable.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>

#include "dp/error.h"
#include "engine/base/crc32c.h"
#include "engine/base/fault.h"
#include "engine/base/file_ops.h"

namespace dp {

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

void FileWriter::finish() {
  if (file_ops().fsync(file_.get()) != 0) throw_io_errno(path_, "writing it to the disk", errno);
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

void replace_file(const std::string& path, const std::function<void(FileWriter&)>& fill) {
  const PathParts parts = split_path(path);
  const std::string temporary = temporary_sibling(parts, "tmp");
  try {
    FileWriter file(temporary);
    fill(file);
    file.finish();
    if (file_ops().rename(temporary.c_str(), parts.path().c_str()) != 0)
      throw_io_errno(parts.path(), "moving the new file there", errno);
  } catch (...) {
    remove_tree(temporary);
    throw;
  }
  sync_folder(parts.parent);
}

void remove_unfinished(const std::string& path) noexcept try {
  const PathParts parts = split_path(path);
  const std::string prefix = "." + parts.name + ".tmp-";  // followed by <pid>-<n>, see temporary_sibling()
  const auto is_number = [](std::string_view text) {
    return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
  };
  for (const auto& entry : std::filesystem::directory_iterator(parts.parent)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(prefix)) continue;
    const std::string_view numbers = std::string_view(name).substr(prefix.size());
    const std::size_t dash = std::min(numbers.find('-'), numbers.size() - 1);
    if (is_number(numbers.substr(0, dash)) && is_number(numbers.substr(dash + 1)))
      file_ops().unlink(entry.path().c_str());
  }
} catch (...) {
}

bool remove_tree(const std::string& path) noexcept try {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) return errno == ENOENT;
  if (!S_ISDIR(status.st_mode)) return file_ops().unlink(path.c_str()) == 0;
  bool all = true;
  for (const auto& entry : std::filesystem::directory_iterator(path)) all = remove_tree(entry.path().string()) && all;
  return file_ops().rmdir(path.c_str()) == 0 && all;
} catch (...) {
  return false;
}

}  // namespace dp
