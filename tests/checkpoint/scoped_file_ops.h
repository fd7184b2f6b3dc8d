#pragma once

#include "engine/base/files.h"

namespace dp::test {

// Skips fsync, for tests that do not depend on durability.
class UnsyncedOps : public FileOps {
 public:
  int fsync(int) override { return 0; }
};

// Makes the engine use `ops` during its lifetime.
class ScopedFileOps {
 public:
  explicit ScopedFileOps(FileOps& ops) : before_(&file_ops()) { set_file_ops(&ops); }
  ~ScopedFileOps() { set_file_ops(before_); }
  ScopedFileOps(const ScopedFileOps&) = delete;
  ScopedFileOps& operator=(const ScopedFileOps&) = delete;

 private:
  FileOps* before_;
};

}  // namespace dp::test
