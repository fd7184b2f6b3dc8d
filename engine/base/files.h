// File operations, atomic and durable writes, and error messages about files.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dp/error.h"

namespace dp {

// Error messages about files: always one printable line, whatever bytes the file contains.

// At most `longest` bytes of an external text; control characters and bytes above 126 become \xNN.
std::string excerpt(std::string_view text, std::size_t longest = 80);

// Error(data): "<path>: <fault>".
[[noreturn]] void throw_data(std::string_view path, const std::string& fault);
// Advice for an errno, for example "; free some space". Empty for other errors.
const char* remedy_of(int error);
// An Error(data) because a read failed. The file itself may be good.
class ReadError : public Error {
 public:
  using Error::Error;
};
// Error(data) and Error(io): "<path>: <doing> failed: <strerror>". Error(io) also has the remedy. Error(data) is a
// ReadError unless the file is missing or of another kind.
[[noreturn]] void throw_data_errno(std::string_view path, const std::string& doing, int error);
[[noreturn]] void throw_io_errno(std::string_view path, const std::string& doing, int error);

// Owner of a file descriptor.
class FileHandle {
 public:
  FileHandle() = default;
  explicit FileHandle(int file) : file_(file) {}  // negative: empty
  FileHandle(FileHandle&& other) noexcept : file_(std::exchange(other.file_, -1)) {}
  FileHandle& operator=(FileHandle&& other) noexcept {
    std::swap(file_, other.file_);
    return *this;
  }
  ~FileHandle() { close(); }

  explicit operator bool() const { return file_ >= 0; }
  int get() const { return file_; }
  int release() { return std::exchange(file_, -1); }  // the caller owns it
  int close();                                        // result of the close() call; 0 if empty

 private:
  int file_ = -1;
};

// The system calls with which the engine reads and changes its files. Tests replace them to inject failures.

// Each member is the system call of that name: on failure it returns a negative value and sets errno.
class FileOps {
 public:
  virtual ~FileOps() = default;
  virtual int open(int folder, const char* path, int flags, mode_t mode);  // openat; O_CLOEXEC is added
  virtual ssize_t pread(int file, void* data, std::size_t bytes, off_t offset);
  virtual ssize_t write(int file, const void* data, std::size_t bytes);
  virtual int fsync(int file);
  virtual int close(int file);
  virtual int mkdir(const char* path, mode_t mode);
  virtual int rename(const char* from, const char* to);
  virtual int exchange(const char* a, const char* b);  // renameat2(RENAME_EXCHANGE)
  virtual int unlink(const char* path);
  virtual int rmdir(const char* path);
  virtual std::int64_t free_bytes(const char* path);  // of the file system, for this user: statvfs
};

FileOps& file_ops();
// Null restores the system calls. The caller keeps `ops` alive until then.
void set_file_ops(FileOps* ops);

// The content of a file; empty if it does not exist. Error(io) if it cannot be read.
std::string read_file(const std::string& path);
// The names in a folder; empty if it does not exist. Error(io) if it cannot be listed.
std::vector<std::string> names_in(const std::string& folder);

// Durable writes: after a kill or a power loss, a file has either its old or its new content. Unless stated otherwise,
// functions throw Error(io) with path and reason.

// Creates a new file; the path must not exist.
class FileWriter {
 public:
  explicit FileWriter(const std::string& path);
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  void finish(bool sync = true);  // fsync and close

  const std::string& path() const { return path_; }
  std::uint64_t bytes() const { return bytes_; }
  std::uint32_t crc() const { return crc_; }  // crc32c of all bytes written

 private:
  std::string path_;
  FileHandle file_;
  std::uint64_t bytes_ = 0;
  std::uint32_t crc_ = 0;
};

// Folder and name of a path: "run/last/" is {"run", "last"}, "last" is {".", "last"}. Error(usage) if the path does not
// end in a name.
struct PathParts {
  std::string parent, name;
  std::string sibling(const std::string& other) const { return parent + "/" + other; }
  std::string path() const { return sibling(name); }
};
PathParts split_path(const std::string& path);

// An unused path beside `target`: ".<name>.<tag>-<pid>-<n>"; n counts up in this process.
std::string temporary_sibling(const PathParts& target, const char* tag);

void sync_file(const std::string& path);
void sync_folder(const std::string& path);
int try_sync_folder(const std::string& path);  // returns errno on failure, else 0
// Replaces the file at `path` atomically. `fill` writes the new content to a temporary sibling. Without `sync` a power
// loss may leave an empty file.
void replace_file(const std::string& path, const std::function<void(FileWriter&)>& fill, bool sync = true);
// Removes the temporary files beside `path` that killed calls of replace_file() left. The caller ensures that no
// replace_file() call is running. Files that cannot be removed are left in place.
void remove_unfinished(const std::string& path) noexcept;
// Removes a file, a link or a folder with its content; does not follow links. Returns false if anything is left. Never
// throws.
bool remove_tree(const std::string& path) noexcept;

// Atomic writes of small text files.

// Writes a temporary file beside `path`, syncs it, renames it and syncs the folder. Error(io): the old file is
// unchanged. A pipe or a terminal is written in place.
void write_file_atomically(const std::string& path, const std::string& text);
// Error(io) unless a file can be created beside `path`, or if `path` is a folder or a pipe without a reader. For a pipe
// it returns the write end; hold it until the file is written, so that the reader does not get EOF.
FileHandle require_writable(const std::string& path);

}  // namespace dp
