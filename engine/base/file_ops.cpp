#include "engine/base/file_ops.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>

namespace dp {

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

namespace {
FileOps system_ops;
std::atomic<FileOps*> current{&system_ops};
}  // namespace

FileOps& file_ops() { return *current; }
void set_file_ops(FileOps* ops) { current = ops ? ops : &system_ops; }

}  // namespace dp
