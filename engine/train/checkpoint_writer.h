// Writes checkpoints on a thread of its own, one at a time, while the run goes on.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
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

  // The checkpoint to fill next. Take the result of the last write first. The tensors of the last checkpoint are used
  // again, because the first write to new memory is slow.
  Checkpoint& next() { return checkpoint_; }
  // Starts a thread that calls fill() and writes next() to each folder. If no thread can be started, does this itself.
  void start(std::vector<std::string> folders, std::function<void()> fill);
  // The results of start(), in order, once. `wait`: until they are there; otherwise an empty list if they are not.
  std::vector<Written> take(bool wait);
  void free_memory() { checkpoint_ = {}; }  // of next()

 private:
  void write(const std::function<void()>& fill);

  Checkpoint checkpoint_;
  std::vector<Written> results_;
  std::atomic<bool> done_{false};
  std::thread thread_;
};

}  // namespace dp
