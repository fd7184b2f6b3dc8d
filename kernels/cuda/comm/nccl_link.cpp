#include "kernels/cuda/comm/nccl_link.h"

#include <chrono>

#include "dp/error.h"
#include "kernels/cuda/runtime/check.h"

namespace dp::kernels::cuda {
namespace {

constexpr std::chrono::milliseconds kPause{100};
// A thread that stays in an NCCL call for longer waits for a peer. Only an abort during the call can free it.
constexpr std::chrono::milliseconds kPatience{1000};

}  // namespace

NcclLink::~NcclLink() {
  if (ended_) return;
  if (cudaSetDevice(device_.index) != cudaSuccess) cudaGetLastError();
  aborted() ? api_.comm_abort(comm_) : api_.comm_destroy(comm_);
}

std::string NcclLink::text_of(NcclResult result) const {
  std::string text = api_.get_error_string(result);
  const char* const more = api_.get_last_error != nullptr ? api_.get_last_error(comm_) : nullptr;
  if (more != nullptr && *more != '\0') text += std::string("; ") + more;
  return text;
}

// If the device has failed, its error is the cause; NCCL's result only says that a CUDA call failed.
void NcclLink::fail(const char* what, NcclResult result) {
  std::string text = "NCCL on " + to_string(device_) + ": " + what + " failed: " + text_of(result);
  if (const cudaError_t error = cudaPeekAtLastError(); error != cudaSuccess) text += "; the device: " + describe(error);
  throw Error(ErrorCode::device, text);
}

void NcclLink::throw_end() {
  const std::scoped_lock lock(mutex_);
  if (reason_.empty()) throw Aborted();
  throw Error(ErrorCode::device, reason_);
}

void NcclLink::end(const std::string& reason) {
  {
    const std::scoped_lock lock(mutex_);
    reason_ = reason;
  }
  ended_ = true;  // later enter() calls do not call NCCL; a thread inside, or launching a graph, gets time to leave
  if (cudaSetDevice(device_.index) != cudaSuccess) cudaGetLastError();
  const auto patience = std::chrono::steady_clock::now() + kPatience;
  while ((!graphs_.drop() || inside_) && std::chrono::steady_clock::now() < patience)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  api_.comm_abort(comm_);
}

void NcclLink::poll() {
  if (ended_) return;
  if (aborted()) return end({});
  NcclResult error = NcclResult::success;
  const NcclResult asked = api_.comm_get_async_error(comm_, &error);
  if (asked != NcclResult::success) error = asked;
  if (error != NcclResult::success && error != NcclResult::in_progress)
    end("NCCL on " + to_string(device_) + " failed asynchronously: " + text_of(error));
}

NcclWatch::NcclWatch(std::vector<std::unique_ptr<NcclLink>> links)
    : links_(std::move(links)), thread_([this] { watch(); }) {}

NcclWatch::~NcclWatch() {
  {
    const std::scoped_lock lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void NcclWatch::watch() {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, kPause, [this] { return closing_; })) {
    lock.unlock();
    for (const auto& link : links_) link->poll();
    lock.lock();
  }
}

}  // namespace dp::kernels::cuda
