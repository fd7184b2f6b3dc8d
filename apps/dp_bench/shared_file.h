// An anonymous in-memory file for child processes. The kernel frees it once no process has it open.
#pragma once

#include <dp/error.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cerrno>
#include <cstring>
#include <string>

namespace dp_bench {

class SharedFile {
 public:
  SharedFile() : file_(::memfd_create("dp_bench", MFD_CLOEXEC)) {
    if (file_ < 0)
      throw dp::Error(dp::ErrorCode::io, std::string("cannot create a file in memory: ") + std::strerror(errno));
  }
  ~SharedFile() { ::close(file_); }
  SharedFile(const SharedFile&) = delete;
  SharedFile& operator=(const SharedFile&) = delete;

  // The path for other processes, valid during the lifetime of this object.
  std::string path() const { return "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(file_); }

 private:
  int file_;
};

}  // namespace dp_bench
