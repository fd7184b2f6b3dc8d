#include "kernels/comm/nccl/nccl_communicator.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string_view>
#include <system_error>

#include "dp/error.h"
#include "kernels/comm/p2p/tree_sum.h"
#include "kernels/device/cuda/runtime.h"
#include "kernels/device/cuda/stream.h"

namespace dp::kernels::cuda {
namespace {

constexpr std::chrono::milliseconds kPause{100};

// NCCL's result says only that a CUDA call failed. This is the error of that call.
std::string device_error() {
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? std::string() : "; the device: " + describe(error);
}

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

void NcclLink::fail(const char* what, NcclResult result) {
  throw Error(ErrorCode::device,
              "NCCL on " + to_string(device_) + ": " + what + " failed: " + text_of(result) + device_error());
}

void NcclLink::throw_end() {
  const std::scoped_lock lock(mutex_);
  if (reason_.empty()) throw Aborted();
  throw Error(ErrorCode::device, reason_);
}

void NcclLink::end(const std::string& reason) {
  if (ended_) return;
  {
    const std::scoped_lock lock(mutex_);
    reason_ = reason;
  }
  ended_ = true;  // later enter() calls do not call NCCL; a thread inside, or launching a graph, gets time to leave
  if (cudaSetDevice(device_.index) != cudaSuccess) cudaGetLastError();
  const auto since = std::chrono::steady_clock::now();
  while ((!graphs_.drop() || inside_) && !waits_for_peer(comm_, since))
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

NcclWatch::NcclWatch(std::vector<std::unique_ptr<NcclLink>> links) : links_(std::move(links)) {
  try {
    thread_ = std::thread([this] { watch(); });
  } catch (const std::system_error& error) {
    throw Error(ErrorCode::device, "the thread that watches NCCL could not be started (" + error.code().message() +
                                       "); raise ulimit -u and -v");
  }
}

NcclWatch::~NcclWatch() { stop(); }

void NcclWatch::stop() {
  {
    const std::scoped_lock lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void NcclWatch::end(const std::string& reason) {
  stop();
  for (const auto& link : links_) link->end(reason);
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

// Creates NCCL communicators: in one process, or across processes through Rendezvous.

namespace {

// NCCL reads its environment at its first call. By default it connects the ranks for an algorithm at the first call
// that uses it. That allocates memory while peers may already wait in a kernel (docs/decisions/0028).
const NcclApi& library() {
  ::setenv("NCCL_RUNTIME_CONNECT", "0", 0);
  if (nccl().api == nullptr)
    throw Error(ErrorCode::usage,
                "nccl cannot be used: " + nccl().reason + "; install NCCL, or set DP_NCCL_LIBRARY to its file");
  return *nccl().api;
}

void check_nccl(const NcclApi& api, NcclResult result, const char* what) {
  if (result != NcclResult::success)
    throw Error(ErrorCode::device,
                std::string("NCCL: ") + what + " failed: " + api.get_error_string(result) + device_error());
}

// NCCL's own switch for several ranks on one GPU. It exists since 2.30 (NCCL user guide, "Environment Variables").
constexpr const char* kMultiRank = "NCCL_MULTI_RANK_GPU_ENABLE";
constexpr int kFirstMultiRank = 23000;
bool allows_shared_gpus(const NcclApi& api) {
  const char* const value = std::getenv(kMultiRank);
  int version = 0;
  return value != nullptr && std::string_view(value) == "1" && api.get_version(&version) == NcclResult::success &&
         version >= kFirstMultiRank;
}

std::unique_ptr<NcclLink> link(const NcclApi& api, NcclComm comm, CudaContext& context) {
  return std::make_unique<NcclLink>(api, comm, context.device(), context.graphs(), context.abort());
}

// What each rank sends to all ranks: its GPU, its error if it cannot take part, and, from rank 0, the NCCL id.
struct Introduction {
  NcclId id{};
  bool may_share_gpu = false;
  std::array<char, 96> gpu{};  // unique across hosts: "host 0000:01:00.0"
  std::array<char, 256> problem{};
};

template <std::size_t Size>
void put(std::array<char, Size>& field, const std::string& text) {
  std::memcpy(field.data(), text.data(), std::min(text.size(), Size - 1));
}

std::string gpu_of(const CudaContext& context) {
  char host[64] = "", bus[32] = "";
  gethostname(host, sizeof host - 1);
  check(cudaDeviceGetPCIBusId(bus, sizeof bus, context.device().index), "reading the bus id");
  return std::string(host) + " " + bus;
}

Introduction introduce(const CudaContext& context, int rank) {
  Introduction mine;
  try {
    put(mine.gpu, gpu_of(context));
    const NcclApi& api = library();
    mine.may_share_gpu = allows_shared_gpus(api);
    if (rank == 0) check_nccl(api, api.get_unique_id(&mine.id), "starting");
  } catch (const Error& error) {
    put(mine.problem, error.what());
  }
  return mine;
}

// Throws the same Error on every rank.
void check_introductions(const std::vector<Introduction>& all) {
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].problem[0] != '\0')
      throw Error(ErrorCode::usage, "rank " + std::to_string(rank) + ": " + all[rank].problem.data());
    for (std::size_t other = 0; other < rank; ++other)
      if (all[rank].gpu == all[other].gpu && !(all[rank].may_share_gpu && all[other].may_share_gpu))
        throw Error(ErrorCode::usage, "nccl requires one GPU per rank: ranks " + std::to_string(other) + " and " +
                                          std::to_string(rank) + " both use the GPU at " + all[rank].gpu.data() +
                                          "; start one rank per GPU");
  }
}

// Calls each kind of collective once with every type, on all ranks of this process, and waits. NCCL loads and allocates
// at first calls. Here only this thread launches work, so nothing can deadlock.
void warm_up(const NcclApi& api, NcclWatch& watch, std::span<Context* const> contexts, int first_rank, int size) {
  constexpr NcclType kTypes[] = {NcclType::f32, NcclType::f64, NcclType::bf16, NcclType::u8};
  struct Rank {
    std::unique_ptr<Buffer> from, to;
    std::unique_ptr<Stream> stream;
  };
  const std::size_t bytes = static_cast<std::size_t>(size) * sizeof(double);
  std::vector<Rank> ranks;
  for (Context* const context : contexts)
    ranks.push_back({context->allocate(bytes), context->allocate(bytes), context->make_stream()});
  // One group: a thread that serves several ranks must launch the calls of all of them together. The group's end
  // launches them, so the thread leaves no rank's communicator before it.
  const auto group = [&](const auto& calls) {
    check_nccl(api, api.group_start(), "warming up");
    NcclResult first = NcclResult::success;
    bool ended = false;
    const auto keep = [&](NcclResult result) {
      if (first == NcclResult::success) first = result;
    };
    const std::function<void(std::size_t)> enter_from = [&](std::size_t i) {
      if (i == ranks.size()) {
        ended = true;
        return keep(api.group_end());
      }
      const cudaStream_t stream = of_cuda(*ranks[i].stream).native();
      watch.link(i).enter("warming up", [&](NcclComm comm) {
        calls(comm, first_rank + static_cast<int>(i), ranks[i], stream, keep);
        enter_from(i + 1);
        return NcclResult::success;
      });
    };
    try {
      enter_from(0);
    } catch (...) {
      if (!ended) api.group_end();
      throw;
    }
    check_nccl(api, first, "warming up");
  };
  try {
    group([&](NcclComm comm, int, Rank& own, cudaStream_t stream, const auto& keep) {
      void *const from = own.from->data(), *const to = own.to->data();
      for (const NcclType type : kTypes) {
        keep(api.broadcast(from, to, 1, type, 0, comm, stream));
        keep(api.all_gather(from, to, 1, type, comm, stream));
        if (type == NcclType::u8) continue;
        keep(api.reduce(from, to, 1, type, NcclOp::sum, 0, comm, stream));
        keep(api.all_reduce(from, to, 1, type, NcclOp::sum, comm, stream));
        keep(api.reduce_scatter(from, to, 1, type, NcclOp::sum, comm, stream));
      }
    });
    // Every pair, for gather and scatter with any root.
    group([&](NcclComm comm, int rank, Rank& own, cudaStream_t stream, const auto& keep) {
      for (int peer = 0; peer < size; ++peer) {
        if (peer == rank) continue;
        keep(api.send(own.from->data(), 1, NcclType::u8, peer, comm, stream));
        keep(api.receive(static_cast<std::byte*>(own.to->data()) + peer, 1, NcclType::u8, peer, comm, stream));
      }
    });
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      contexts[i]->bind_thread();
      ranks[i].stream->synchronize();
      watch.link(i).check();
    }
  } catch (const std::exception& error) {
    watch.end(error.what());  // otherwise a rank's kernels may wait forever for another rank, and its stream for them
    throw;
  }
}

}  // namespace

std::string nccl_refusal(std::span<const int> devices) {
  if (nccl().api == nullptr) return nccl().reason;
  if (allows_shared_gpus(*nccl().api)) return {};
  for (std::size_t rank = 0; rank < devices.size(); ++rank)
    for (std::size_t other = 0; other < rank; ++other)
      if (devices[rank] == devices[other])
        return "replicas " + std::to_string(other) + " and " + std::to_string(rank) +
               " share cuda:" + std::to_string(devices[rank]);
  return {};
}

std::vector<std::unique_ptr<Communicator>> make_nccl_communicators(std::span<Context* const> contexts) {
  std::vector<int> devices;
  for (Context* const context : contexts) devices.push_back(context->device().index);
  if (const std::string refusal = nccl_refusal(devices); !refusal.empty())
    throw Error(ErrorCode::usage, "nccl cannot be used: " + refusal + "; use --comm p2p");
  const NcclApi& api = library();
  const int size = static_cast<int>(contexts.size());
  NcclId id{};
  check_nccl(api, api.get_unique_id(&id), "starting");
  std::vector<NcclComm> comms(contexts.size());
  check_nccl(api, api.group_start(), "creating communicators");
  bool open = true;
  try {
    for (int rank = 0; rank < size; ++rank) {
      bind_device(devices[static_cast<std::size_t>(rank)]);
      check_nccl(api, api.comm_init_rank(&comms[static_cast<std::size_t>(rank)], size, id, rank),
                 "creating communicators");
    }
    open = false;
    check_nccl(api, api.group_end(), "creating communicators");
  } catch (...) {
    NcclComm none = nullptr;
    if (open) api.comm_init_rank(&none, size, id, -1);  // invalid, so that the group's end waits for no rank
    if (open) api.group_end();
    for (const NcclComm comm : comms)
      if (comm != nullptr) api.comm_abort(comm);
    throw;
  }

  std::vector<std::unique_ptr<NcclLink>> links;
  for (std::size_t rank = 0; rank < contexts.size(); ++rank)
    links.push_back(link(api, comms[rank], static_cast<CudaContext&>(*contexts[rank])));
  const auto watch = std::make_shared<NcclWatch>(std::move(links));
  warm_up(api, *watch, contexts, 0, size);
  std::vector<std::unique_ptr<Communicator>> handles;
  for (std::size_t rank = 0; rank < contexts.size(); ++rank)
    handles.push_back(std::make_unique<NcclCommunicator>(
        api, watch, watch->link(rank), static_cast<CudaContext&>(*contexts[rank]), static_cast<int>(rank), size));
  return handles;
}

std::unique_ptr<Communicator> join_nccl(Context& context, Rendezvous& rendezvous) {
  auto& own = static_cast<CudaContext&>(context);
  own.bind_thread();
  const Introduction mine = introduce(own, rendezvous.rank());
  std::vector<Introduction> all;
  for (const std::string& text : rendezvous.exchange({reinterpret_cast<const char*>(&mine), sizeof mine})) {
    if (text.size() != sizeof(Introduction))
      throw Error(ErrorCode::usage,
                  "the ranks run different builds of the program; start the same build on every host");
    std::memcpy(&all.emplace_back(), text.data(), sizeof(Introduction));
  }
  check_introductions(all);
  const NcclApi& api = library();
  NcclComm comm = nullptr;
  check_nccl(api, api.comm_init_rank(&comm, rendezvous.size(), all.front().id, rendezvous.rank()),
             "joining the other ranks");
  std::vector<std::unique_ptr<NcclLink>> links;
  links.push_back(link(api, comm, own));
  const auto watch = std::make_shared<NcclWatch>(std::move(links));
  Context* const contexts[] = {&own};
  warm_up(api, *watch, contexts, rendezvous.rank(), rendezvous.size());
  return std::make_unique<NcclCommunicator>(api, watch, watch->link(0), own, rendezvous.rank(), rendezvous.size());
}

}  // namespace dp::kernels::cuda
