#include "kernels/comm/host_collectives.h"

#include <string>

#include "dp/error.h"
#include "kernels/backend.h"
#include "kernels/comm/wire.h"

namespace dp::kernels {

void HostCollectives::set_summands(int summands, std::int64_t stride) {
  summands_ = summands;
  stride_ = stride;
}

void HostCollectives::broadcast(void* data, std::int64_t count, DType type, int root, Stream& stream) {
  enqueue_typed(Collective::broadcast, data, count, type, root, stream);
}
void HostCollectives::reduce(void* data, std::int64_t count, DType type, int root, Stream& stream) {
  enqueue_typed(Collective::reduce, data, count, type, root, stream);
}
void HostCollectives::all_reduce(void* data, std::int64_t count, DType type, Stream& stream) {
  enqueue_typed(Collective::all_reduce, data, count, type, 0, stream);
}
void HostCollectives::reduce_scatter(void* data, std::int64_t count, DType type, Stream& stream) {
  enqueue_typed(Collective::reduce_scatter, data, count, type, 0, stream);
}
void HostCollectives::all_gather(void* data, std::int64_t count, DType type, Stream& stream) {
  enqueue_typed(Collective::all_gather, data, count, type, 0, stream);
}
void HostCollectives::gather(const void* part, void* whole, std::span<const std::size_t> bytes, int root,
                             Stream& stream) {
  enqueue_parts(Collective::gather, whole, const_cast<void*>(part), bytes, root, stream);
}
void HostCollectives::scatter(const void* whole, void* part, std::span<const std::size_t> bytes, int root,
                              Stream& stream) {
  enqueue_parts(Collective::scatter, const_cast<void*>(whole), part, bytes, root, stream);
}

void HostCollectives::enqueue_typed(Collective kind, void* data, std::int64_t count, DType type, int root,
                                    Stream& stream) {
  check_root(root);
  if (count < 0 || (type != DType::f32 && type != DType::f64 && type != DType::bf16))
    throw Error(ErrorCode::usage, "communicator " + name() +
                                      " supports 0 or more elements of float32, float64 or bfloat16, not " +
                                      std::to_string(count) + " of " + dp::to_string(type));
  const int summands = is_sum(kind) ? summands_ : 1;
  if (size_ > 1 || summands > 1) enqueue({kind, type, root, count, 0, summands}, data, nullptr, {}, stream);
}

void HostCollectives::all_gather_parts(void* whole, std::size_t bytes, Stream& stream) {
  if (size_ == 1 || bytes == 0) return;
  enqueue({Collective::all_gather_parts, DType::u8, 0, static_cast<std::int64_t>(bytes) * size_, 0, 1}, whole, nullptr,
          {}, stream);
}

void HostCollectives::enqueue_parts(Collective kind, void* whole, void* part, std::span<const std::size_t> bytes,
                                    int root, Stream& stream) {
  check_root(root);
  if (bytes.size() != static_cast<std::size_t>(size_))
    throw Error(ErrorCode::usage, "gather and scatter over " + std::to_string(size_) +
                                      " ranks need as many sizes, not " + std::to_string(bytes.size()));
  if (size_ == 1) {
    const bool gathers = kind == Collective::gather;
    return stream.copy(gathers ? whole : part, gathers ? part : whole, bytes[0]);
  }
  CollectiveCall call{kind, DType::u8, root, 0, kEmptyPartsHash, 1};
  for (const std::size_t size : bytes) {
    call.count += static_cast<std::int64_t>(size);
    call.parts_hash = hash_part(call.parts_hash, size);
  }
  enqueue(call, whole, part, bytes, stream);
}

void HostCollectives::check_root(int root) const {
  if (root < 0 || root >= size_)
    throw Error(ErrorCode::usage, "rank " + std::to_string(root) + " is not one of the " + std::to_string(size_) +
                                      " ranks of communicator " + name() + "; name a root from 0 to " +
                                      std::to_string(size_ - 1));
}

}  // namespace dp::kernels
