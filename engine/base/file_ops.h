// Every system call with which the engine reads or changes its files, so that tests can make each of them fail or
// forget.
#pragma once

#include <sys/types.h>

#include <cstddef>

namespace dp {

// Each member is the call of that name: a negative result with errno on failure.
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
};

FileOps& file_ops();
// Null brings the system's back. The caller keeps `ops` alive until then.
void set_file_ops(FileOps* ops);

}  // namespace dp
