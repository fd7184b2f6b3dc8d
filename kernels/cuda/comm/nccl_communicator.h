// The communicator "nccl": GPUs of one or several processes, one per rank. A rank first adds its own summands in the
// fixed tree. NCCL then reduces over the ranks in its own order.
#pragma once

#include <memory>
#include <vector>

#include "kernels/cuda/comm/nccl_link.h"
#include "kernels/cuda/context.h"

namespace dp::kernels::cuda {

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
