#include "kernels/comm/p2p/p2p_communicator.h"

#include <algorithm>
#include <optional>
#include <string>

#include "dp/error.h"
#include "kernels/comm/p2p/peers.h"
#include "kernels/comm/p2p/tree_sum.h"
#include "kernels/device/backend.h"
#include "kernels/device/cuda/runtime.h"
#include "kernels/device/host/spin.h"

namespace dp::kernels::cuda {
namespace {

// Bytes, for broadcast and reduce. Below this size one round over the whole data is faster than two rounds over slices.
constexpr std::size_t kOneRound = 128 * 1024;

std::byte* bytes_of(void* data) { return static_cast<std::byte*>(data); }

// Hash of the part sizes of gather and scatter.
std::uint64_t hash_of(std::span<const std::size_t> bytes) {
  std::uint64_t hash = kEmptyPartsHash;
  for (const std::size_t size : bytes) hash = hash_part(hash, size);
  return hash;
}

}  // namespace

P2pCommunicator::P2pCommunicator(std::shared_ptr<PostBoard> board, CudaContext& context, int rank,
                                 const std::vector<std::vector<PeerPath>>& paths, std::string detours)
    : board_(std::move(board)),
      context_(context),
      rank_(rank),
      detours_(std::move(detours)),
      seen_(static_cast<std::size_t>(board_->size())) {
  const auto me = static_cast<std::size_t>(rank);
  for (const PeerPath path : paths[me]) direct_.push_back(reads(path));
  for (std::size_t reader = 0; reader < paths.size(); ++reader) {
    if (!reads(paths[reader][me])) staged_ = true;
    for (const PeerPath path : paths[reader])
      if (!reads(path)) any_staged_ = true;
  }
  context_.bind_thread();
  for (EventHandle& event : reached_) event = make_event_handle();
  load_tree_sums(size());
}

void P2pCommunicator::set_summands(int summands, std::int64_t stride) {
  if (summands < 1 || summands * size() > kMostSummands)
    throw Error(ErrorCode::usage, "at most " + std::to_string(kMostSummands) + " summands are supported on GPUs, not " +
                                      std::to_string(summands * size()));
  summands_ = summands;
  stride_ = stride;
  context_.bind_thread();
  load_tree_sums(summands * size());
}

void P2pCommunicator::reserve(std::size_t bytes) {
  context_.bind_thread();
  const auto ranks = static_cast<std::size_t>(size());
  if (ranks > 1 && bytes >= kOneRound)  // a slice is whole blocks of at most 8 bytes per element
    scratch(std::min(bytes, (bytes + ranks - 1) / ranks + 8 * static_cast<std::size_t>(kSliceBlock)));
  if (staged_) reserve_copies(bytes * static_cast<std::size_t>(summands_));
}

// Reserves both copies: steps alternate between them.
void P2pCommunicator::reserve_copies(std::size_t bytes) {
  for (PinnedCopy& copy : copies_) {
    if (copy.bytes >= bytes) continue;
    PinnedMemory larger = pinned_memory(bytes);
    if (copy.memory) retired_copies_.push_back(std::move(copy.memory));
    copy.memory = std::move(larger);
    copy.bytes = bytes;
  }
}

P2pCommunicator::Call P2pCommunicator::begin(Collective kind, std::int64_t count, DType type, int root,
                                             Stream& stream) const {
  if (root < 0 || root >= size())
    throw Error(ErrorCode::usage,
                "the root must be a rank below " + std::to_string(size()) + ", not " + std::to_string(root));
  bind_device(context_.device().index);
  const bool sums = kind == Collective::reduce || kind == Collective::all_reduce || kind == Collective::reduce_scatter;
  CollectiveCall what;
  what.kind = kind;
  what.type = type;
  what.root = root;
  what.count = count;
  what.summands = sums ? summands_ : 1;
  return {what, of_cuda(stream), size_of(type), slice_of(count, rank_, size())};
}

void P2pCommunicator::publish(const Call& call, const void* data, std::size_t bytes, int pieces, std::size_t stride) {
  const auto* from = static_cast<const std::byte*>(data);
  PinnedCopy& copy = copies_[posts_ % 2];
  if (staged_ && bytes > 0) {
    reserve_copies(bytes * static_cast<std::size_t>(pieces));
    for (int piece = 0; piece < pieces; ++piece) {
      const auto at = static_cast<std::size_t>(piece);
      check(cudaMemcpyAsync(bytes_of(copy.memory.get()) + at * bytes, from + at * stride, bytes, cudaMemcpyDeviceToHost,
                            call.stream.work()),
            "copying to the host");
    }
  }
  meet(call, from, staged_ ? bytes_of(copy.memory.get()) : nullptr);
}

void P2pCommunicator::reset() {
  posts_ = 0;
  board_->forget(rank_);
}

const PostBoard::Post& P2pCommunicator::post_of(int rank) {
  if (turn_ == nullptr) return board_->wait(rank, posts_, context_.abort(), nullptr);
  const CaptureTurn::Passed passed(*turn_);
  return board_->wait(rank, posts_, context_.abort(), turn_);
}

void P2pCommunicator::meet(const Call& call, const std::byte* data, const std::byte* staged) {
  const EventHandle& reached = reached_[posts_ % 2];
  check(cudaEventRecord(reached.get(), call.stream.native()), "recording an event");
  board_->put(rank_, posts_, {data, staged, reached.get(), call.what});
  for (int other = 0; other < size(); ++other) {
    const PostBoard::Post& post = post_of(other);
    if (post.call != call.what)
      throw Error(ErrorCode::usage, "the ranks of p2p call different collectives: rank " + std::to_string(rank_) + " " +
                                        to_string(call.what) + ", rank " + std::to_string(other) + " " +
                                        to_string(post.call));
    if (other != rank_) call.stream.wait(post.reached);
    seen_[static_cast<std::size_t>(other)] = post;
  }
  ++posts_;
}

const std::byte* P2pCommunicator::published(int rank) const {
  const auto r = static_cast<std::size_t>(rank);
  return direct_[r] ? seen_[r].data : seen_[r].staged;
}

void P2pCommunicator::pull(const Call& call, int from, std::size_t offset, void* dst, std::size_t bytes) const {
  const std::byte* const src = published(from) + offset;
  if (bytes == 0 || src == dst) return;
  check(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, call.stream.work()), "copying between replicas");
  if (from != rank_) call.stream.count_bytes(bytes);
}

void P2pCommunicator::sum(const Call& call, Range range, void* out) {
  if (range.size() == 0) return;
  const auto count = static_cast<std::size_t>(call.what.count);
  summed_.clear();
  for (int rank = 0; rank < size(); ++rank) {
    // A pinned copy stores the summands contiguously.
    const std::size_t stride = direct_[static_cast<std::size_t>(rank)] ? static_cast<std::size_t>(stride_) : count;
    for (int summand = 0; summand < summands_; ++summand)
      summed_.push_back(published(rank) +
                        (static_cast<std::size_t>(summand) * stride + static_cast<std::size_t>(range.begin)) *
                            call.element);
  }
  tree_sum(summed_, out, range.size(), call.what.type, call.stream.work());
  call.stream.count_bytes(static_cast<std::size_t>((size() - 1) * summands_) * static_cast<std::size_t>(range.size()) *
                          call.element);
}

std::byte* P2pCommunicator::scratch(std::size_t bytes) {
  if (scratch_bytes_ < bytes) {
    DeviceMemory larger = device_memory(bytes);
    if (scratch_) retired_scratch_.push_back(std::move(scratch_));
    scratch_ = std::move(larger);
    scratch_bytes_ = bytes;
  }
  return bytes_of(scratch_.get());
}

void P2pCommunicator::pull_slices(const Call& call, std::byte* data) {
  for (int rank = 0; rank < size(); ++rank) {
    const Range range = slice(call, rank);
    if (rank != rank_)
      pull(call, rank, 0, data + static_cast<std::size_t>(range.begin) * call.element,
           static_cast<std::size_t>(range.size()) * call.element);
  }
}

void P2pCommunicator::broadcast(void* data, std::int64_t count, DType type, int root, Stream& stream) {
  const Call call = begin(Collective::broadcast, count, type, root, stream);
  const std::size_t bytes = static_cast<std::size_t>(count) * call.element;
  const std::size_t own = static_cast<std::size_t>(call.own.begin) * call.element;
  const std::size_t own_bytes = static_cast<std::size_t>(call.own.size()) * call.element;
  const bool one_round = any_staged_ || size() == 2 || bytes < kOneRound;
  publish(call, data, rank_ == root ? bytes : 0);
  if (one_round) {
    if (rank_ != root) pull(call, root, 0, data, bytes);
  } else {
    if (rank_ != root) pull(call, root, own, bytes_of(data) + own, own_bytes);
    publish(call, bytes_of(data) + own, own_bytes);
    if (rank_ != root) pull_slices(call, bytes_of(data));
  }
  conclude(call);
}

void P2pCommunicator::reduce(void* data, std::int64_t count, DType type, int root, Stream& stream) {
  const Call call = begin(Collective::reduce, count, type, root, stream);
  const std::size_t bytes = static_cast<std::size_t>(count) * call.element;
  const std::size_t stride = static_cast<std::size_t>(stride_) * call.element;
  publish(call, data, bytes, summands_, stride);
  if (size() == 1 || bytes < kOneRound) {
    if (rank_ == root) sum(call, {0, count}, data);
  } else {
    // Only the root's data may change. The other ranks write their slices of the sum to scratch memory.
    const std::size_t own_bytes = static_cast<std::size_t>(call.own.size()) * call.element;
    std::byte* const slice = scratch(own_bytes);
    sum(call, call.own, slice);
    publish(call, slice, own_bytes);
    if (rank_ == root) {
      pull_slices(call, bytes_of(data));
      pull(call, rank_, 0, bytes_of(data) + static_cast<std::size_t>(call.own.begin) * call.element, own_bytes);
    }
  }
  conclude(call);
}

void P2pCommunicator::all_reduce(void* data, std::int64_t count, DType type, Stream& stream) {
  const Call call = begin(Collective::all_reduce, count, type, 0, stream);
  const std::size_t own = static_cast<std::size_t>(call.own.begin) * call.element;
  publish(call, data, static_cast<std::size_t>(count) * call.element, summands_,
          static_cast<std::size_t>(stride_) * call.element);
  sum(call, call.own, bytes_of(data) + own);
  publish(call, bytes_of(data) + own, static_cast<std::size_t>(call.own.size()) * call.element);
  pull_slices(call, bytes_of(data));
  conclude(call);
}

void P2pCommunicator::reduce_scatter(void* data, std::int64_t count, DType type, Stream& stream) {
  const Call call = begin(Collective::reduce_scatter, count, type, 0, stream);
  publish(call, data, static_cast<std::size_t>(count) * call.element, summands_,
          static_cast<std::size_t>(stride_) * call.element);
  sum(call, call.own, bytes_of(data) + static_cast<std::size_t>(call.own.begin) * call.element);
  conclude(call);
}

void P2pCommunicator::all_gather(void* data, std::int64_t count, DType type, Stream& stream) {
  const Call call = begin(Collective::all_gather, count, type, 0, stream);
  publish(call, bytes_of(data) + static_cast<std::size_t>(call.own.begin) * call.element,
          static_cast<std::size_t>(call.own.size()) * call.element);
  pull_slices(call, bytes_of(data));
  conclude(call);
}

void P2pCommunicator::all_gather_parts(void* whole, std::size_t bytes, Stream& stream) {
  const Call call = begin(Collective::all_gather_parts, static_cast<std::int64_t>(bytes), DType::u8, 0, stream);
  publish(call, bytes_of(whole) + static_cast<std::size_t>(rank_) * bytes, bytes);
  for (int rank = 0; rank < size(); ++rank)
    if (rank != rank_) pull(call, rank, 0, bytes_of(whole) + static_cast<std::size_t>(rank) * bytes, bytes);
  conclude(call);
}

void P2pCommunicator::gather(const void* part, void* whole, std::span<const std::size_t> bytes, int root,
                             Stream& stream) {
  Call call =
      begin(Collective::gather, static_cast<std::int64_t>(bytes_before(bytes, size())), DType::u8, root, stream);
  call.what.parts_hash = hash_of(bytes);
  publish(call, part, bytes[static_cast<std::size_t>(rank_)]);
  if (rank_ == root)
    for (int rank = 0; rank < size(); ++rank)
      pull(call, rank, 0, bytes_of(whole) + bytes_before(bytes, rank), bytes[static_cast<std::size_t>(rank)]);
  conclude(call);
}

void P2pCommunicator::scatter(const void* whole, void* part, std::span<const std::size_t> bytes, int root,
                              Stream& stream) {
  Call call =
      begin(Collective::scatter, static_cast<std::int64_t>(bytes_before(bytes, size())), DType::u8, root, stream);
  call.what.parts_hash = hash_of(bytes);
  publish(call, whole, rank_ == root ? bytes_before(bytes, size()) : 0);
  pull(call, root, bytes_before(bytes, rank_), part, bytes[static_cast<std::size_t>(rank_)]);
  conclude(call);
}

std::vector<std::unique_ptr<Communicator>> make_p2p_communicators(std::span<Context* const> contexts) {
  std::vector<int> devices;
  for (Context* const context : contexts) devices.push_back(context->device().index);
  const std::vector<std::vector<PeerPath>> paths = connect(devices);
  const std::string detours = describe_detours(devices, paths);
  const auto board = std::make_shared<PostBoard>(static_cast<int>(contexts.size()));
  std::vector<std::unique_ptr<Communicator>> handles;
  for (std::size_t rank = 0; rank < contexts.size(); ++rank)
    handles.push_back(std::make_unique<P2pCommunicator>(board, static_cast<CudaContext&>(*contexts[rank]),
                                                        static_cast<int>(rank), paths, detours));
  return handles;
}

CudaLink::CudaLink(CudaContext& sender, CudaContext& receiver) : sender_(sender), receiver_(receiver) {
  direct_ = reads(connect({receiver.device().index, sender.device().index})[0][1]);
  sender_.bind_thread();
  for (Slot& slot : slots_) slot.sent = make_event_handle();
  receiver_.bind_thread();
  for (Slot& slot : slots_) slot.taken = make_event_handle(), slot.emptied = make_event_handle();
  fetch_ = receiver_.make_stream(StreamUse::communication);
}

void CudaLink::reserve(std::size_t bytes) {
  for (Slot& slot : slots_) {
    if (slot.bytes >= bytes) continue;
    receiver_.bind_thread();
    slot.arrived = device_memory(bytes);
    sender_.bind_thread();
    if (direct_)
      slot.memory = device_memory(bytes);
    else
      slot.pinned = pinned_memory(bytes);
    slot.bytes = bytes;
  }
}

void CudaLink::reset() {
  sent_.store(0, std::memory_order_relaxed);
  received_.store(0, std::memory_order_relaxed);
}

void CudaLink::await(const std::atomic<std::uint64_t>& count, std::uint64_t number, End end) {
  if (count.load(std::memory_order_acquire) > number) return;
  const AbortFlag* const abort = (end == End::sender ? sender_ : receiver_).abort();
  CaptureTurn* const turn = turns_[static_cast<std::size_t>(end)];
  std::optional<CaptureTurn::Passed> passed;
  if (turn != nullptr) passed.emplace(*turn);
  Spinner spinner;
  while (count.load(std::memory_order_acquire) <= number) {
    if (abort != nullptr && abort->load(std::memory_order_relaxed)) throw Aborted();
    if (turn != nullptr && turn->given_up()) throw CaptureTurn::GivenUp();
    spinner.wait();
  }
}

void CudaLink::send(const void* data, std::size_t bytes, Stream& stream) {
  const std::uint64_t number = sent_.load(std::memory_order_relaxed);
  if (number >= kSlots) await(received_, number - kSlots, End::sender);
  sender_.bind_thread();
  CudaStream& own = of_cuda(stream);
  Slot& to = slot(number);
  if (to.bytes < bytes)
    throw Error(ErrorCode::device,
                "a pipeline stage sends " + std::to_string(bytes) + " bytes, for which no memory was reserved");
  if (number >= kSlots) own.wait(to.taken.get());
  check(cudaMemcpyAsync(place(to), data, bytes, cudaMemcpyDefault, own.work()), "copying a tensor of a pipeline stage");
  own.count_bytes(bytes);
  to.used = bytes;
  check(cudaEventRecord(to.sent.get(), own.native()), "recording an event");
  sent_.store(number + 1, std::memory_order_release);
}

void CudaLink::receive(void* data, std::size_t bytes, Stream& stream) {
  const std::uint64_t number = received_.load(std::memory_order_relaxed);
  await(sent_, number, End::receiver);
  receiver_.bind_thread();
  CudaStream &own = of_cuda(stream), &fetch = of_cuda(*fetch_);
  Slot& from = slot(number);
  if (from.used != bytes)
    throw Error(ErrorCode::device, "a pipeline stage expects " + std::to_string(bytes) +
                                       " bytes, but its neighbour has sent " + std::to_string(from.used));
  fetch.wait(from.sent.get());
  if (number >= kSlots) fetch.wait(from.emptied.get());
  check(cudaMemcpyAsync(from.arrived.get(), place(from), bytes, cudaMemcpyDefault, fetch.native()),
        "copying a tensor of a pipeline stage");
  check(cudaEventRecord(from.taken.get(), fetch.native()), "recording an event");
  own.wait(from.taken.get());
  check(cudaMemcpyAsync(data, from.arrived.get(), bytes, cudaMemcpyDefault, own.work()),
        "copying a tensor of a pipeline stage");
  check(cudaEventRecord(from.emptied.get(), own.native()), "recording an event");
  received_.store(number + 1, std::memory_order_release);
}

}  // namespace dp::kernels::cuda
