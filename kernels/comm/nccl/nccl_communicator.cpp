#include "kernels/comm/nccl/nccl_communicator.h"

#include <algorithm>
#include <chrono>

#include "dp/error.h"
#include "kernels/comm/p2p/tree_sum.h"
#include "kernels/device/cuda/check.h"

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

namespace {

NcclType nccl_type(DType type) {
  if (type == DType::f32) return NcclType::f32;
  if (type == DType::f64) return NcclType::f64;
  if (type == DType::bf16) return NcclType::bf16;
  throw Error(ErrorCode::usage, std::string("nccl supports float32, float64 and bfloat16, not ") + to_string(type));
}

std::byte* at(void* data, std::int64_t element, DType type) {
  return static_cast<std::byte*>(data) + static_cast<std::size_t>(element) * size_of(type);
}
const std::byte* at(const void* data, std::int64_t element, DType type) {
  return static_cast<const std::byte*>(data) + static_cast<std::size_t>(element) * size_of(type);
}

// Whether all slices have the same size. NCCL's own collectives require that.
bool even(std::int64_t count, int size) { return count % size == 0 && slice_of(count, 0, size).size() == count / size; }

void keep_first(NcclResult& first, NcclResult result) {
  if (first == NcclResult::success) first = result;
}

}  // namespace

NcclCommunicator::NcclCommunicator(const NcclApi& api, std::shared_ptr<NcclWatch> watch, NcclLink& link,
                                   CudaContext& context, int rank, int size)
    : api_(api), watch_(std::move(watch)), link_(link), context_(context), rank_(rank), size_(size) {
  context_.guards().push_back(&link_);
}

NcclCommunicator::~NcclCommunicator() {
  std::erase(context_.guards(), &link_);
  context_.collective_order().forget(this);
}

template <typename Call>
void NcclCommunicator::enqueue(const char* what, Stream& stream, const Call& call) {
  CudaStream& own = of_cuda(stream);
  bind_device(own.device());
  context_.collective_order().begin(this, own);
  link_.enter(what, [&](NcclComm comm) { return call(comm, own.work()); });
  own.worked();
  context_.collective_order().end(this, own);
}

template <typename Call>
void NcclCommunicator::enqueue_group(const char* what, Stream& stream, const Call& call) {
  enqueue(what, stream, [&](NcclComm comm, cudaStream_t native) {
    NcclResult first = api_.group_start();
    if (first != NcclResult::success) return first;
    call(comm, native, first);
    keep_first(first, api_.group_end());
    return first;
  });
}

void NcclCommunicator::set_summands(int summands, std::int64_t stride) {
  if (summands < 1 || summands > kMostSummands)
    throw Error(ErrorCode::usage, "at most " + std::to_string(kMostSummands) + " summands are supported on GPUs, not " +
                                      std::to_string(summands));
  summands_ = summands;
  stride_ = stride;
  context_.bind_thread();
  if (summands > 1) load_tree_sums(summands);
}

void NcclCommunicator::reserve(std::size_t bytes) {
  if (summands_ == 1 || scratch_bytes_ >= bytes) return;
  context_.bind_thread();
  if (scratch_) retired_.push_back(std::move(scratch_));
  scratch_bytes_ = 0;
  scratch_ = device_memory(bytes);
  scratch_bytes_ = bytes;
}

const void* NcclCommunicator::own_sum(void* data, std::int64_t count, DType type, bool may_change, Stream& stream) {
  nccl_type(type);
  if (summands_ == 1) return data;
  CudaStream& own = of_cuda(stream);
  bind_device(own.device());
  void* sum = data;
  if (!may_change) {
    reserve(static_cast<std::size_t>(count) * size_of(type));
    sum = scratch_.get();
  }
  summed_.clear();
  for (int summand = 0; summand < summands_; ++summand) summed_.push_back(at(data, summand * stride_, type));
  tree_sum(summed_, sum, count, type, own.work());
  return sum;
}

void NcclCommunicator::broadcast(void* data, std::int64_t count, DType type, int root, Stream& stream) {
  enqueue("a broadcast", stream, [&](NcclComm comm, cudaStream_t native) {
    return api_.broadcast(data, data, static_cast<std::size_t>(count), nccl_type(type), root, comm, native);
  });
}

void NcclCommunicator::reduce(void* data, std::int64_t count, DType type, int root, Stream& stream) {
  const bool mine = rank_ == root;
  const void* const sum = own_sum(data, count, type, mine, stream);
  enqueue("a reduction", stream, [&](NcclComm comm, cudaStream_t native) {
    return api_.reduce(sum, mine ? data : nullptr, static_cast<std::size_t>(count), nccl_type(type), NcclOp::sum, root,
                       comm, native);
  });
}

void NcclCommunicator::all_reduce(void* data, std::int64_t count, DType type, Stream& stream) {
  const void* const sum = own_sum(data, count, type, true, stream);
  enqueue("an all-reduce", stream, [&](NcclComm comm, cudaStream_t native) {
    return api_.all_reduce(sum, data, static_cast<std::size_t>(count), nccl_type(type), NcclOp::sum, comm, native);
  });
}

void NcclCommunicator::reduce_scatter(void* data, std::int64_t count, DType type, Stream& stream) {
  const void* const sum = own_sum(data, count, type, false, stream);
  const Range own = slice_of(count, rank_, size_);
  if (even(count, size_))
    return enqueue("a reduce-scatter", stream, [&](NcclComm comm, cudaStream_t native) {
      return api_.reduce_scatter(sum, at(data, own.begin, type), static_cast<std::size_t>(own.size()), nccl_type(type),
                                 NcclOp::sum, comm, native);
    });
  enqueue_group("a reduce-scatter", stream, [&](NcclComm comm, cudaStream_t native, NcclResult& first) {
    for (int root = 0; root < size_; ++root) {
      const Range range = slice_of(count, root, size_);
      if (range.size() == 0) continue;
      keep_first(first,
                 api_.reduce(at(sum, range.begin, type), root == rank_ ? at(data, range.begin, type) : nullptr,
                             static_cast<std::size_t>(range.size()), nccl_type(type), NcclOp::sum, root, comm, native));
    }
  });
}

void NcclCommunicator::all_gather(void* data, std::int64_t count, DType type, Stream& stream) {
  if (even(count, size_)) {
    const Range own = slice_of(count, rank_, size_);
    return enqueue("an all-gather", stream, [&](NcclComm comm, cudaStream_t native) {
      return api_.all_gather(at(data, own.begin, type), data, static_cast<std::size_t>(own.size()), nccl_type(type),
                             comm, native);
    });
  }
  enqueue_group("an all-gather", stream, [&](NcclComm comm, cudaStream_t native, NcclResult& first) {
    for (int root = 0; root < size_; ++root) {
      const Range range = slice_of(count, root, size_);
      if (range.size() == 0) continue;
      void* const slice = at(data, range.begin, type);
      keep_first(first, api_.broadcast(slice, slice, static_cast<std::size_t>(range.size()), nccl_type(type), root,
                                       comm, native));
    }
  });
}

void NcclCommunicator::all_gather_parts(void* whole, std::size_t bytes, Stream& stream) {
  const std::byte* const own = static_cast<std::byte*>(whole) + static_cast<std::size_t>(rank_) * bytes;
  enqueue("an all-gather", stream, [&](NcclComm comm, cudaStream_t native) {
    return api_.all_gather(own, whole, bytes, NcclType::u8, comm, native);
  });
}

void NcclCommunicator::gather(const void* part, void* whole, std::span<const std::size_t> bytes, int root,
                              Stream& stream) {
  enqueue_group("a gather", stream, [&](NcclComm comm, cudaStream_t native, NcclResult& first) {
    const std::size_t own = bytes[static_cast<std::size_t>(rank_)];
    if (rank_ != root) {
      if (own != 0) keep_first(first, api_.send(part, own, NcclType::u8, root, comm, native));
      return;
    }
    for (int rank = 0; rank < size_; ++rank) {
      std::byte* const to = static_cast<std::byte*>(whole) + bytes_before(bytes, rank);
      const std::size_t size = bytes[static_cast<std::size_t>(rank)];
      if (rank != root && size != 0) keep_first(first, api_.receive(to, size, NcclType::u8, rank, comm, native));
    }
  });
  std::byte* const place = static_cast<std::byte*>(whole) + bytes_before(bytes, root);
  if (rank_ == root && place != part) stream.copy(place, part, bytes[static_cast<std::size_t>(root)]);
}

void NcclCommunicator::scatter(const void* whole, void* part, std::span<const std::size_t> bytes, int root,
                               Stream& stream) {
  enqueue_group("a scatter", stream, [&](NcclComm comm, cudaStream_t native, NcclResult& first) {
    const std::size_t own = bytes[static_cast<std::size_t>(rank_)];
    if (rank_ != root) {
      if (own != 0) keep_first(first, api_.receive(part, own, NcclType::u8, root, comm, native));
      return;
    }
    for (int rank = 0; rank < size_; ++rank) {
      const std::byte* const from = static_cast<const std::byte*>(whole) + bytes_before(bytes, rank);
      const std::size_t size = bytes[static_cast<std::size_t>(rank)];
      if (rank != root && size != 0) keep_first(first, api_.send(from, size, NcclType::u8, rank, comm, native));
    }
  });
  const std::byte* const place = static_cast<const std::byte*>(whole) + bytes_before(bytes, root);
  if (rank_ == root && place != part) stream.copy(part, place, bytes[static_cast<std::size_t>(root)]);
}

}  // namespace dp::kernels::cuda
