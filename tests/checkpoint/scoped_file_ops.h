#pragma once

#include "engine/base/file_ops.h"

namespace dp::test {

// For tests that ask nothing of a real disk, and would wait for it.
class UnsyncedOps : public FileOps {
 public:
  int fsync(int) override { return 0; }
};

// The engine uses `ops` for as long as this lives.
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
