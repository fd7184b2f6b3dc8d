// Writes downloaded files and unpacks archives.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

namespace dp_train {

// Files that a download writes.

// Error(io): "<path>: <doing> failed: <reason of errno>".
[[noreturn]] void throw_errno(const std::string& path, const std::string& doing);

// An open file or folder. All members throw Error(io).
class File {
 public:
  File(const std::string& path, int flags);  // as open(2); closed in child processes
  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  std::uint64_t end();                             // moves to the end and returns its offset
  void write(const char* data, std::size_t size);  // at the position
  void clear();                                    // removes the content
  void sync();
  bool lock();  // false if another process has locked it; true if the file system has no locks

 private:
  std::string path_;
  int file_;
};

// In lower-case hex: SHA-256 for 64 digits, MD5 for 32. Error(io)
std::string checksum(const std::string& path, std::size_t digits);

// Archives of data sets.

// Unpacks a .tar.gz file into this new folder and syncs its files. Returns early if `stop` is not 0. Error(data) for an
// archive that is damaged or has anything but regular files and folders below its own top: absolute paths, "..", links,
// devices. Error(io) or std::filesystem::filesystem_error if the files cannot be written.
void unpack(const std::string& archive, const std::string& folder, const std::atomic<int>& stop);

}  // namespace dp_train
