// The communicator "nccl": GPUs of one process or of several, one for each rank. Sums are NCCL's, in an order of its own; what a rank
// brings itself is added first, in the fixed tree.
#pragma once

#include <memory>
#include <vector>

#include "kernels/cuda/comm/nccl_link.h"
#include "kernels/cuda/context.h"

namespace dp::kernels::cuda {

class NcclCommunicator final : public Communicator {
 public:
  // `link`: of `watch`, which it shares with the other ranks of this process.
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
  // The same for several calls that NCCL takes as one; call() gives the first result that is no success.
  template <typename Call>
  void enqueue_group(const char* what, Stream& stream, const Call& call);
  // Where the sum of this rank's summands lies: at `data` itself if that may change, else in scratch memory.
  const void* own_sum(void* data, std::int64_t count, DType type, bool may_change, Stream& stream);

  const NcclApi& api_;
  std::shared_ptr<NcclWatch> watch_;
  NcclLink& link_;
  CudaContext& context_;
  int rank_, size_;
  int summands_ = 1;
  std::int64_t stride_ = 0;  // elements
  DeviceMemory scratch_;
  // Outgrown ones: to free memory waits for what runs on other devices too, which may wait for this rank.
  std::vector<DeviceMemory> retired_;
  std::size_t scratch_bytes_ = 0;
  std::vector<const void*> summed_;
};

// Why NCCL can not serve these devices in one process; empty if it can.
std::string nccl_refusal(std::span<const int> devices);
// One handle per context, in rank order. Error(usage) with nccl_refusal(), Error(device) where NCCL does not start.
std::vector<std::unique_ptr<Communicator>> make_nccl_communicators(std::span<Context* const> contexts);
// As Backend::join.
std::unique_ptr<Communicator> join_nccl(Context& context, Rendezvous& rendezvous);

}  // namespace dp::kernels::cuda
