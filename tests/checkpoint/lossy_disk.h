// A model of what a disk may hold after a power loss: it follows the calls of a save, and knows which of them it may
// forget.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/file_ops.h"

namespace dp::test {

struct Inode;
using Entries = std::map<std::string, std::shared_ptr<Inode>>;

// A file or a folder. What was there when the last fsync of it returned is safe; of the rest a power loss keeps any
// first part.
struct Inode {
  bool folder = false;
  std::string data;
  std::size_t safe_bytes = 0;
  Entries entries;                                    // safe
  std::vector<std::function<void(Entries&)>> unsafe;  // changes of the entries, in order
};

// Follows the changes below `root`, which must hold what it holds safely. Stops following before call number `end`:
// there the power is lost, while the process, which does not know, goes on.
class LossyDisk final : public FileOps {
 public:
  LossyDisk(std::string root, int end, bool exchanges);
  int calls() const { return calls_; }
  std::size_t unsafe_changes() const { return root_inode_->unsafe.size(); }
  // Makes in `target`, an empty folder, what the disk holds when it kept so many of the unsafe changes of the root, all
  // or none of the other folders', and all or none of the unsafe bytes of files.
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
