// A model of the disk content after a power loss. It tracks the file operations of a save and which of them are not yet
// durable.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/files.h"

namespace dp::test {

struct Inode;
using Entries = std::map<std::string, std::shared_ptr<Inode>>;

// A file or a folder. Content at the last completed fsync is durable. Of the later changes, a power loss keeps a
// prefix.
struct Inode {
  bool folder = false;
  std::string data;
  std::size_t safe_bytes = 0;
  Entries entries;                                    // durable
  std::vector<std::function<void(Entries&)>> unsafe;  // later changes of the entries, in order
};

// Tracks changes below `root`, whose present content is durable. Tracking stops before call number `end`: the power is
// lost there, but the process continues.
class LossyDisk final : public FileOps {
 public:
  LossyDisk(std::string root, int end, bool exchanges);
  int calls() const { return calls_; }
  std::size_t unsafe_changes() const { return root_inode_->unsafe.size(); }
  // Writes to the empty folder `target` what the disk holds after the power loss. Keeps the first `root_changes`
  // non-durable changes of the root, all or none of the other folders' changes, and all or none of the files'
  // non-durable bytes.
  void restore(const std::string& target, std::size_t root_changes, bool other_changes, bool bytes) const;

  int open(int folder, const char* path, int flags, mode_t mode) override;
  ssize_t write(int file, const void* data, std::size_t bytes) override;
  int fsync(int file) override;
  int close(int file) override;
  int mkdir(const char* path, mode_t mode) override;
  int rename(const char* from, const char* to) override;
  int exchange(const char* a, const char* b) override;
  int unlink(const char* path) override;
  int rmdir(const char* path) override;

 private:
  bool follow() { return calls_++ < end_; }
  std::shared_ptr<Inode> find(const std::string& path) const;
  void change(const std::string& path, std::function<void(Entries&)> change);

  std::string root_;
  int end_, calls_ = 0;
  bool exchanges_;
  std::shared_ptr<Inode> root_inode_;
  std::map<int, std::shared_ptr<Inode>> open_;
};

}  // namespace dp::test
