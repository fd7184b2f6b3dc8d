// Collectives and links that use NCCL.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "kernels/comm/nccl/nccl_api.h"
#include "kernels/device/backend.h"
#include "kernels/device/cuda/context.h"
#include "kernels/device/cuda/graph.h"
#include "kernels/device/cuda/runtime.h"

namespace dp::kernels::cuda {

// Whether a thread in an NCCL call with this communicator waits for a peer. Only an abort ends such a wait. `since`:
// the time at which the wait for the thread began. NCCL does not report what its threads do, so a thread that has not
// left its call after a second counts as waiting. Tests replace this function.
inline bool (*waits_for_peer)(NcclComm comm, std::chrono::steady_clock::time_point since) =
    [](NcclComm, std::chrono::steady_clock::time_point since) {
      return std::chrono::steady_clock::now() - since >= std::chrono::seconds(1);
    };

// A watched NCCL communicator of one rank.
//
// NCCL's calls block while a peer is missing, and its kernels spin. Only ncclCommAbort from another thread ends both.
// So a watcher thread polls the engine's abort flag and NCCL's asynchronous errors ten times a second, and aborts the
// communicator.
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
    NcclResult result = NcclResult::success;
    {
      inside_ = true;
      const Leaving leaving{inside_};
      if (!ended_) result = call(comm_);
    }
    if (ended_) throw_end();
    if (result != NcclResult::success) fail(what, result);
  }
  void check() override {
    if (ended_) throw_end();
  }

  // Called by the watcher.
  void poll();
  void end(const std::string& reason);  // aborts the communicator; empty: the abort flag was set

 private:
  struct Leaving {
    ~Leaving() { inside = false; }
    std::atomic<bool>& inside;
  };
  bool aborted() const { return abort_ != nullptr && abort_->load(std::memory_order_relaxed); }
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
  void end(const std::string& reason);  // ends all links; call it outside NCCL

 private:
  void watch();
  void stop();

  const std::vector<std::unique_ptr<NcclLink>> links_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool closing_ = false;
  std::thread thread_;
};

// The communicator "nccl": GPUs of one or several processes, one per rank. A rank first adds its own summands in the
// fixed tree. NCCL then reduces over the ranks in its own order.
class NcclCommunicator final : public Communicator {
 public:
  // `link` belongs to `watch`, which all ranks of this process share.
  NcclCommunicator(const NcclApi& api, std::shared_ptr<NcclWatch> watch, NcclLink& link, CudaContext& context, int rank,
                   int size);
  ~NcclCommunicator() override;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string name() const override { return "nccl"; }

  void set_summands(int summands, std::int64_t stride) override;
  void reserve(std::size_t bytes) override;
  void broadcast(void* data, std::int64_t count, DType type, int root, Stream& stream) override;
  void reduce(void* data, std::int64_t count, DType type, int root, Stream& stream) override;
  void all_reduce(void* data, std::int64_t count, DType type, Stream& stream) override;
  void reduce_scatter(void* data, std::int64_t count, DType type, Stream& stream) override;
  void all_gather(void* data, std::int64_t count, DType type, Stream& stream) override;
  void all_gather_parts(void* whole, std::size_t bytes, Stream& stream) override;
  void gather(const void* part, void* whole, std::span<const std::size_t> bytes, int root, Stream& stream) override;
  void scatter(const void* whole, void* part, std::span<const std::size_t> bytes, int root, Stream& stream) override;

 private:
  // Enqueues call(comm, stream) in the device's order of collectives.
  template <typename Call>
  void enqueue(const char* what, Stream& stream, const Call& call);
  // Enqueues several calls as one NCCL group. `call` stores the first failure in its last argument.
  template <typename Call>
  void enqueue_group(const char* what, Stream& stream, const Call& call);
  // Returns the sum of this rank's summands: in `data` if `may_change`, otherwise in scratch memory.
  const void* own_sum(void* data, std::int64_t count, DType type, bool may_change, Stream& stream);

  const NcclApi& api_;
  std::shared_ptr<NcclWatch> watch_;
  NcclLink& link_;
  CudaContext& context_;
  int rank_, size_;
  int summands_ = 1;
  std::int64_t stride_ = 0;  // elements
  DeviceMemory scratch_;
  // Outgrown scratch memory. Freeing it could wait for other devices, whose work may wait for this rank.
  std::vector<DeviceMemory> retired_;
  std::size_t scratch_bytes_ = 0;
  std::vector<const void*> summed_;
};

// Why NCCL cannot serve these devices in one process; empty if it can.
std::string nccl_refusal(std::span<const int> devices);
// One communicator per context, in rank order. Error(usage) with nccl_refusal(); Error(device) if NCCL does not start.
std::vector<std::unique_ptr<Communicator>> make_nccl_communicators(std::span<Context* const> contexts);
// See Backend::join.
std::unique_ptr<Communicator> join_nccl(Context& context, Rendezvous& rendezvous);

}  // namespace dp::kernels::cuda
