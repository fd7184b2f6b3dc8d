// Owner of a file descriptor.
#pragma once

#include <utility>

namespace dp {

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

}  // namespace dp
