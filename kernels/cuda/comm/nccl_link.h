// A watched NCCL communicator of one rank.
//
// NCCL's calls block while a peer is missing, and its kernels spin. Only ncclCommAbort from another thread ends both.
// So a watcher thread polls the engine's abort flag and NCCL's asynchronous errors ten times a second, and aborts the
// communicator.
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
  // Owns `comm`, a communicator of `device`. `graphs` may hold `comm`; they are dropped before the abort. `abort` may
  // be null.
  NcclLink(const NcclApi& api, NcclComm comm, Device device, GraphList& graphs, const AbortFlag* abort)
      : api_(api), comm_(comm), device_(device), graphs_(graphs), abort_(abort) {}
  ~NcclLink() override;

  // Calls call(comm). Throws Aborted or Error(device) if the link has ended, Error(device) if the call fails.
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
  void end(const std::string& reason);  // empty: the abort flag was set
  [[noreturn]] void throw_end();
  [[noreturn]] void fail(const char* what, NcclResult result);
  std::string text_of(NcclResult result) const;

  const NcclApi& api_;
  NcclComm comm_;
  const Device device_;
  GraphList& graphs_;
  const AbortFlag* const abort_;
  std::atomic<bool> inside_{false}, ended_{false};  // inside_: a thread is in an NCCL call
  std::mutex mutex_;                                // guards reason_
  std::string reason_;
};

// The links of one communicator in this process, and their watcher thread.
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
