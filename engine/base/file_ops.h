// The system calls with which the engine reads and changes its files. Tests replace them to inject failures.
#pragma once

#include <sys/types.h>

#include <cstddef>

namespace dp {

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
};

FileOps& file_ops();
// Null restores the system calls. The caller keeps `ops` alive until then.
void set_file_ops(FileOps* ops);

}  // namespace dp
