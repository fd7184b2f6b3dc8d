#include "engine/train/checkpoint_writer.h"

#include <memory>
#include <system_error>
#include <utility>

#include "engine/train/start.h"

namespace dp {

CheckpointWriter::~CheckpointWriter() {
  if (thread_.joinable()) thread_.join();
}

void CheckpointWriter::start(std::vector<std::string> folders, Checkpoint checkpoint) {
  take(/*wait=*/true);
  for (std::string& folder : folders) results_.push_back({std::move(folder), nullptr});
  const auto snapshot = std::make_shared<const Checkpoint>(std::move(checkpoint));
  try {
    thread_ = std::thread([this, snapshot] { write(*snapshot); });
  } catch (const std::system_error&) {
    write(*snapshot);
  }
}

void CheckpointWriter::write(const Checkpoint& checkpoint) {
  for (Written& written : results_) try {
      require_finite(checkpoint.weights);
      save_checkpoint(written.folder, checkpoint);
    } catch (...) {
      written.failure = std::current_exception();
    }
  done_.store(true, std::memory_order_release);
}

std::vector<CheckpointWriter::Written> CheckpointWriter::take(bool wait) {
  if (results_.empty() || (!wait && !done_.load(std::memory_order_acquire))) return {};
  if (thread_.joinable()) thread_.join();
  done_.store(false);
  return std::exchange(results_, {});
}

}  // namespace dp
