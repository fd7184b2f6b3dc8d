// Writes checkpoints on a thread of its own, one at a time, while the run goes on.
#pragma once

#include <atomic>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include "dp/checkpoint.h"

namespace dp {

class CheckpointWriter {
 public:
  struct Written {
    std::string folder;
    std::exception_ptr failure;  // null: the checkpoint is on the disk
  };

  CheckpointWriter() = default;
  ~CheckpointWriter();  // waits for the thread
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // Writes the checkpoint to these folders, one after another. The result of the write before must have been taken. If
  // no thread can be started, this call writes.
  void start(std::vector<std::string> folders, Checkpoint checkpoint);
  // The results of start(), in order, once. `wait`: until they are there; otherwise an empty list if they are not.
  std::vector<Written> take(bool wait);

 private:
  void write(const Checkpoint& checkpoint);

  std::vector<Written> results_;
  std::atomic<bool> done_{false};
  std::thread thread_;
};

}  // namespace dp
