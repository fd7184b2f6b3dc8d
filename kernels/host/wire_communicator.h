// A communicator whose ranks are processes: its calls travel over a Wire, on a thread of their own.
//
// All collectives of one handle go through one stream, in the one order that all ranks have; sets of handles are
// independent. What a call was given stays valid until the call has passed, the context has failed, or the handle is gone.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "kernels/host/communication_thread.h"
#include "kernels/host/host_context.h"

namespace dp::kernels {

class WireCommunicator final : public Communicator {
 public:
  WireCommunicator(std::unique_ptr<Wire> wire, HostContext& context);

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string name() const override { return name_; }

  void bring(int summands, std::int64_t stride) override;
  void trace(TraceRing* ring) override { thread_.trace(ring); }
  void broadcast(void* data, std::int64_t count, DType type, int root, Stream& stream) override;
  void reduce(void* data, std::int64_t count, DType type, int root, Stream& stream) override;
  void all_reduce(void* data, std::int64_t count, DType type, Stream& stream) override;
  void reduce_scatter(void* data, std::int64_t count, DType type, Stream& stream) override;
  void all_gather(void* data, std::int64_t count, DType type, Stream& stream) override;
  void all_gather_parts(void* whole, std::size_t bytes, Stream& stream) override;
  void gather(const void* part, void* whole, std::span<const std::size_t> bytes, int root, Stream& stream) override;
  void scatter(const void* whole, void* part, std::span<const std::size_t> bytes, int root, Stream& stream) override;

 private:
  void enqueue(const CollectiveCall& call, void* data, void* part, Stream& stream);
  void enqueue_typed(Collective kind, void* data, std::int64_t count, DType type, int root, Stream& stream);
  void enqueue_parts(Collective kind, void* whole, void* part, std::span<const std::size_t> bytes, int root,
                     Stream& stream);
  void check_root(int root) const;

  const std::string name_;
  const int rank_, size_;
  int summands_ = 1;
  std::int64_t stride_ = 0;  // elements
  CommunicationThread thread_;
};

}  // namespace dp::kernels
