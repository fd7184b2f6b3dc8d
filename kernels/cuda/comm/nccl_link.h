// One rank's handle of NCCL, watched: what ends it frees whoever waits for it.
//
// NCCL's calls block while a peer is missing, and its kernels spin; only ncclCommAbort, from another thread, ends both. So a thread
// looks ten times a second at the engine's abort flag and at NCCL's asynchronous errors, and aborts.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cuda/comm/nccl_api.h"
#include "kernels/cuda/runtime/graph.h"
#include "kernels/cuda/runtime/guard.h"

namespace dp::kernels::cuda {

class NcclLink final : public Guard {
 public:
  // Owns `comm`, of that device. `graphs`: those that may hold `comm`; they are dropped before it is aborted. `abort` may be null.
  NcclLink(const NcclApi& api, NcclComm comm, Device device, GraphList& graphs, const AbortFlag* abort)
      : api_(api), comm_(comm), device_(device), graphs_(graphs), abort_(abort) {}
  ~NcclLink() override;

  // Calls call(comm); throws what ended the link, or Error(device) when the call fails.
  template <typename Call>
  void enter(const char* what, const Call& call) {
    inside_ = true;
    NcclResult result = NcclResult::success;
    if (!ended_) result = call(comm_);
    inside_ = false;
    if (ended_) throw_end();
    if (result != NcclResult::success) fail(what, result);
  }
  void check() override {
    if (ended_) throw_end();
  }

  // Called by the watcher.
  void poll();

 private:
  bool aborted() const { return abort_ != nullptr && abort_->load(std::memory_order_relaxed); }
  void end(const std::string& reason);  // empty: because of the abort flag
  [[noreturn]] void throw_end();
  [[noreturn]] void fail(const char* what, NcclResult result);
  std::string text_of(NcclResult result) const;

  const NcclApi& api_;
  NcclComm comm_;
  const Device device_;
  GraphList& graphs_;
  const AbortFlag* const abort_;
  std::atomic<bool> inside_{false}, ended_{false};  // inside_: a thread is in a call of NCCL
  std::mutex mutex_;                                // of what follows
  std::string reason_;
};

// The links of one communicator in this process, and the thread that watches them.
class NcclWatch {
 public:
  explicit NcclWatch(std::vector<std::unique_ptr<NcclLink>> links);
  ~NcclWatch();
  NcclWatch(const NcclWatch&) = delete;
  NcclWatch& operator=(const NcclWatch&) = delete;

  NcclLink& link(std::size_t number) { return *links_[number]; }

 private:
  void watch();

  const std::vector<std::unique_ptr<NcclLink>> links_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace dp::kernels::cuda
