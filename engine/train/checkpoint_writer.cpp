#include "engine/train/checkpoint_writer.h"

#include <pthread.h>

#include <system_error>
#include <utility>

#include "engine/train/start.h"
#include "kernels/device/host/cores.h"

namespace dp {

CheckpointWriter::~CheckpointWriter() {
  if (thread_.joinable()) thread_.join();
}

void CheckpointWriter::start(std::vector<std::string> folders, std::function<void()> fill) {
  for (std::string& folder : folders) results_.push_back({std::move(folder), nullptr});
  try {
    thread_ = std::thread([this, fill] {
      kernels::unpin_current_thread();
      ::pthread_setname_np(::pthread_self(), "checkpoint");
      write(fill);
    });
  } catch (const std::system_error&) {
    write(fill);
  }
}

void CheckpointWriter::write(const std::function<void()>& fill) {
  std::exception_ptr failure;
  try {
    fill();
    require_finite(checkpoint_.weights);
  } catch (...) {
    failure = std::current_exception();
  }
  for (Written& written : results_) try {
      if ((written.failure = failure) == nullptr) save_checkpoint(written.folder, checkpoint_);
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
