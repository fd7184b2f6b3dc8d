#include "engine/checkpoint/byte_source.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "engine/base/fault.h"
#include "engine/base/file_ops.h"

namespace dp {
namespace {

// O_NONBLOCK: opening a pipe without a writer must not wait.
constexpr int kFlags = O_RDONLY | O_NONBLOCK | O_NOCTTY;

FileHandle open_to_read(int folder, const char* path, int flags, const std::string& name) {
  if (name.find('\0') != std::string::npos) throw_data(name, "the path contains a zero byte");
  FileHandle file(file_ops().open(folder, path, flags, 0));
  if (!file && errno == ELOOP && (flags & O_NOFOLLOW))
    throw_data(name, "is a symbolic link; a checkpoint must not contain links");
  if (!file) throw_data_errno(name, "opening it", errno);
  return file;
}

}  // namespace

void MemorySource::read(std::uint64_t offset, std::span<std::byte> out) {
  if (offset > bytes_.size() || out.size() > bytes_.size() - offset)
    throw_data(name_, "became shorter while it was read");
  if (!out.empty()) std::memcpy(out.data(), bytes_.data() + offset, out.size());
}

FileSource::FileSource(std::string path, FileHandle file) : path_(std::move(path)), file_(std::move(file)), size_(0) {
  struct stat status {};
  if (::fstat(file_.get(), &status) != 0) throw_data_errno(path_, "reading its size", errno);
  if (!S_ISREG(status.st_mode))
    throw_data(path_, std::string(S_ISDIR(status.st_mode) ? "is a folder" : "is not a regular file") + "; name a file");
  size_ = static_cast<std::uint64_t>(status.st_size);
}

FileSource::FileSource(const std::string& path)
    : FileSource(path, open_to_read(AT_FDCWD, path.c_str(), kFlags, path)) {}

FileSource::FileSource(const FileHandle& folder, const std::string& folder_path, const std::string& name)
    : FileSource(folder_path + "/" + name,
                 open_to_read(folder.get(), name.c_str(), kFlags | O_NOFOLLOW, folder_path + "/" + name)) {}

void FileSource::read(std::uint64_t offset, std::span<std::byte> out) {
  while (!out.empty()) {
    const ssize_t got = file_ops().pread(file_.get(), out.data(), out.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_data_errno(path_, "reading at byte " + std::to_string(offset), errno);
    if (got == 0) throw_data(path_, "ends at byte " + std::to_string(offset) + "; it was truncated while it was read");
    out = out.subspan(static_cast<std::size_t>(got));
    offset += static_cast<std::uint64_t>(got);
  }
}

}  // namespace dp
