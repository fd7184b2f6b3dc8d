// Common base of the communicators of host backends. It checks each call and converts it to a CollectiveCall for
// enqueue().
#pragma once

#include <span>

#include "kernels/comm/collective_call.h"
#include "kernels/communicator.h"

namespace dp::kernels {

class HostCollectives : public Communicator {
 public:
  int rank() const override { return rank_; }
  int size() const override { return size_; }

  void set_summands(int summands, std::int64_t stride) override;
  void broadcast(void* data, std::int64_t count, DType type, int root, Stream& stream) override;
  void reduce(void* data, std::int64_t count, DType type, int root, Stream& stream) override;
  void all_reduce(void* data, std::int64_t count, DType type, Stream& stream) override;
  void reduce_scatter(void* data, std::int64_t count, DType type, Stream& stream) override;
  void all_gather(void* data, std::int64_t count, DType type, Stream& stream) override;
  void all_gather_parts(void* whole, std::size_t bytes, Stream& stream) override;
  void gather(const void* part, void* whole, std::span<const std::size_t> bytes, int root, Stream& stream) override;
  void scatter(const void* whole, void* part, std::span<const std::size_t> bytes, int root, Stream& stream) override;

 protected:
  HostCollectives(int rank, int size) : rank_(rank), size_(size) {}

  // Enqueues a checked call. `data` is the array, or `whole` for a call in parts. Only for gather and scatter: `part`
  // is this rank's part, and `bytes` holds the sizes of all parts, valid until enqueue() returns.
  virtual void enqueue(const CollectiveCall& call, void* data, void* part, std::span<const std::size_t> bytes,
                       Stream& stream) = 0;

  const int rank_, size_;
  int summands_ = 1;
  std::int64_t stride_ = 0;  // elements

 private:
  void enqueue_typed(Collective kind, void* data, std::int64_t count, DType type, int root, Stream& stream);
  void enqueue_parts(Collective kind, void* whole, void* part, std::span<const std::size_t> bytes, int root,
                     Stream& stream);
  void check_root(int root) const;
};

}  // namespace dp::kernels
