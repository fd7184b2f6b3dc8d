#include "kernels/comm/host_communicator.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <type_traits>

#include "dp/error.h"
#include "kernels/comm/wire.h"
#include "kernels/device/backend.h"
#include "kernels/device/host/host_context.h"

namespace dp::kernels {

void HostLink::reserve(std::size_t bytes) {
  for (Slot& slot : slots_)
    if (slot.memory == nullptr || slot.memory->bytes() < bytes) slot.memory = sender_.allocate(bytes);
}

bool HostLink::put(const void* data, std::size_t bytes) {
  const std::uint64_t number = sent_.load(std::memory_order_relaxed);
  if (number - received_.load(std::memory_order_acquire) == kSlots) return false;
  Slot& to = slot(number);
  if (to.memory == nullptr || to.memory->bytes() < bytes)
    throw Error(ErrorCode::device,
                "a pipeline stage sends " + std::to_string(bytes) + " bytes, for which no memory was reserved");
  std::memcpy(to.memory->data(), data, bytes);
  to.bytes = bytes;
  sent_.store(number + 1, std::memory_order_release);
  return true;
}

bool HostLink::take(void* data, std::size_t bytes) {
  const std::uint64_t number = received_.load(std::memory_order_relaxed);
  if (sent_.load(std::memory_order_acquire) == number) return false;
  const Slot& from = slot(number);
  if (from.bytes != bytes)
    throw Error(ErrorCode::device, "a pipeline stage expects " + std::to_string(bytes) +
                                       " bytes, but its neighbour has sent " + std::to_string(from.bytes));
  std::memcpy(data, from.memory->data(), bytes);
  received_.store(number + 1, std::memory_order_release);
  return true;
}

void HostLink::send(const void* data, std::size_t bytes, Stream& stream) {
  count_call(-1);
  static_cast<HostStream&>(stream).submit(Task([this, data, bytes] { return put(data, bytes); }));
}

void HostLink::receive(void* data, std::size_t bytes, Stream& stream) {
  count_call(-1);
  static_cast<HostStream&>(stream).submit(Task([this, data, bytes] { return take(data, bytes); }));
}

namespace {

// Elements per piece (2 KiB). The parts are still in the L1 cache when the sum overwrites them. memcpy stays below the
// size from which it uses string instructions, which halve the speed here.
template <typename T>
constexpr std::int64_t kPiece = 2048 / sizeof(T);

template <typename T>
using SumOf = std::conditional_t<std::is_same_v<T, BFloat16>, float, T>;

template <int Begin, int End, typename T>
inline SumOf<T> tree(const T* const* parts, std::int64_t i) {
  if constexpr (End - Begin == 1 && std::is_same_v<T, BFloat16>) {
    return to_float(parts[Begin][i]);
  } else if constexpr (End - Begin == 1) {
    return parts[Begin][i];
  } else {
    constexpr int middle = tree_split(Begin, End);
    return tree<Begin, middle>(parts, i) + tree<middle, End>(parts, i);
  }
}

template <int Ranks, typename T>
void sum_of(std::span<void* const> parts, std::int64_t begin, std::int64_t count, SumOf<T>* __restrict sum) {
  const T* heads[Ranks];
  for (std::size_t rank = 0; rank < Ranks; ++rank) heads[rank] = static_cast<const T*>(parts[rank]) + begin;
  for (std::int64_t i = 0; i < count; ++i) sum[i] = tree<0, Ranks>(heads, i);
}

// The tree over a range of ranks depends on their number, not on the first rank.
template <typename T>
void sum_piece(std::span<void* const> parts, std::int64_t begin, std::int64_t count, SumOf<T>* sum) {
  switch (parts.size()) {
    case 1: return sum_of<1, T>(parts, begin, count, sum);
    case 2: return sum_of<2, T>(parts, begin, count, sum);
    case 3: return sum_of<3, T>(parts, begin, count, sum);
    case 4: return sum_of<4, T>(parts, begin, count, sum);
    case 8: return sum_of<8, T>(parts, begin, count, sum);
    default: break;
  }
  const auto middle = static_cast<std::size_t>(tree_split(0, static_cast<int>(parts.size())));
  alignas(64) SumOf<T> right[kPiece<SumOf<T>>];
  sum_piece<T>(parts.first(middle), begin, count, sum);
  sum_piece<T>(parts.subspan(middle), begin, count, right);
  for (std::int64_t i = 0; i < count; ++i) sum[i] += right[i];
}

}  // namespace

template <typename T>
void tree_sum(std::span<void* const> parts, std::span<void* const> outs, Range range, int threads) {
  constexpr std::int64_t kLength = kPiece<SumOf<T>>;
  const std::int64_t pieces = (range.size() + kLength - 1) / kLength;
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
  for (std::int64_t piece = 0; piece < pieces; ++piece) {
    alignas(64) SumOf<T> sum[kLength];
    const std::int64_t begin = range.begin + piece * kLength;
    const std::int64_t count = std::min(kLength, range.end - begin);
    sum_piece<T>(parts, begin, count, sum);
    const void* result = sum;
    [[maybe_unused]] alignas(64) T rounded[kLength];
    if constexpr (!std::is_same_v<T, SumOf<T>>) {
      for (std::int64_t i = 0; i < count; ++i) rounded[i] = from_float<T>(sum[i]);
      result = rounded;
    }
    for (void* const out : outs)
      std::memcpy(static_cast<T*>(out) + begin, result, static_cast<std::size_t>(count) * sizeof(T));
  }
}

template void tree_sum<float>(std::span<void* const>, std::span<void* const>, Range, int);
template void tree_sum<double>(std::span<void* const>, std::span<void* const>, Range, int);
template void tree_sum<BFloat16>(std::span<void* const>, std::span<void* const>, Range, int);

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
  if (size_ > 1 || summands > 1) submit({kind, type, root, count, 0, summands}, data, nullptr, {}, stream);
}

void HostCollectives::all_gather_parts(void* whole, std::size_t bytes, Stream& stream) {
  if (size_ == 1 || bytes == 0) return;
  submit({Collective::all_gather_parts, DType::u8, 0, static_cast<std::int64_t>(bytes) * size_, 0, 1}, whole, nullptr,
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
  submit(call, whole, part, bytes, stream);
}

void HostCollectives::submit(const CollectiveCall& call, void* data, void* part, std::span<const std::size_t> bytes,
                             Stream& stream) {
  count_call(rank_);
  enqueue(call, data, part, bytes, stream);
}

void HostCollectives::check_root(int root) const {
  if (root < 0 || root >= size_)
    throw Error(ErrorCode::usage, "rank " + std::to_string(root) + " is not one of the " + std::to_string(size_) +
                                      " ranks of communicator " + name() + "; name a root from 0 to " +
                                      std::to_string(size_ - 1));
}

CallBoard::CallBoard(std::string name, int size)
    : name_(std::move(name)), own_lines_(static_cast<std::size_t>(size)), ranks_(own_lines_) {}

CallBoard::CallBoard(std::string name, int size, void* lines, std::shared_ptr<void> memory,
                     std::unique_ptr<PeerMemory> peers)
    : name_(std::move(name)),
      memory_(std::move(memory)),
      peers_(std::move(peers)),
      ranks_(static_cast<Line*>(lines), static_cast<std::size_t>(size)) {}

bool CallBoard::announce(int rank, std::uint64_t number, const CollectiveCall& call, void* data) {
  Line& mine = line(rank);
  if (number >= mine.known_left + kSlots) {
    mine.known_left = number;
    for (const Line& other : ranks_)
      mine.known_left = std::min(mine.known_left, other.left.load(std::memory_order_acquire));
    if (number >= mine.known_left + kSlots) return false;
  }
  SharedPlace place;
  if (peers_ != nullptr && data != nullptr) {
    place = find_shared(data);
    if (place.file < 0 && call.count > 0)
      throw Error(ErrorCode::usage, "communicator " + name_ + ": the data of " + to_string(call) +
                                        " is not in shared memory, so other processes cannot read it; allocate it with "
                                        "the replica's context");
  }
  mine.slots[number % kSlots] = {call, data, place};
  mine.announced.store(number + 1, std::memory_order_release);
  return true;
}

void* CallBoard::data(int rank, std::uint64_t number) const {
  const Slot& slot = line(rank).slots[number % kSlots];
  return peers_ == nullptr || slot.place.file < 0 ? slot.data : peers_->at(rank, slot.place);
}

bool CallBoard::met(int rank, int other, std::uint64_t number) const {
  if (line(other).announced.load(std::memory_order_acquire) <= number) return false;
  const CollectiveCall& mine = line(rank).slots[number % kSlots].call;
  const CollectiveCall& theirs = line(other).slots[number % kSlots].call;
  require_same_call(name_, number, rank, mine, other, theirs);
  return true;
}

bool CallBoard::all_finished(std::uint64_t number) const {
  return std::all_of(ranks_.begin(), ranks_.end(),
                     [number](const Line& one) { return one.finished.load(std::memory_order_acquire) > number; });
}

// Announces the call, waits for the ranks whose memory it needs, performs this rank's share, and waits until no other
// rank needs this rank's memory.
class HostCommunicator::Run {
 public:
  Run(HostCommunicator& owner, const CollectiveCall& call, void* data, void* part, Range part_bytes)
      : owner_(&owner), number_(owner.calls_++), call_(call), data_(data), part_(part), part_bytes_(part_bytes) {}

  bool operator()() {
    CallBoard& board = *owner_->board_;
    if (phase_ == Phase::announce) {
      if (!board.announce(owner_->rank_, number_, call_, data_)) return false;
      phase_ = Phase::work;
    }
    if (phase_ == Phase::work) {
      if (needs_root_only() ? !board.met(owner_->rank_, call_.root, number_) : !waits_for_others_later() && !met_all())
        return false;
      work();
      board.finish(owner_->rank_, number_);
      phase_ = Phase::leave;
    }
    if (!needs_root_only() && !(met_all() && board.all_finished(number_))) return false;
    board.leave(owner_->rank_, number_);
    return true;
  }

 private:
  enum class Phase : std::uint8_t { announce, work, leave };

  bool one_to_many() const {
    return call_.kind == Collective::broadcast || call_.kind == Collective::gather || call_.kind == Collective::scatter;
  }
  bool is_root() const { return owner_->rank_ == call_.root; }
  bool needs_root_only() const { return one_to_many() && !is_root(); }
  bool waits_for_others_later() const { return one_to_many() && is_root(); }

  bool met_all() {
    while (met_ < owner_->size() && owner_->board_->met(owner_->rank_, met_, number_)) ++met_;
    return met_ == owner_->size();
  }

  void work() {
    switch (call_.kind) {
      case Collective::broadcast:
        if (is_root() || call_.count == 0) return;
        std::memcpy(data_, root_data(), bytes_of(call_.count));
        return owner_->count_bytes(bytes_of(call_.count));
      case Collective::gather: return copy_part(static_cast<char*>(root_data()) + part_bytes_.begin, part_);
      case Collective::scatter: return copy_part(part_, static_cast<char*>(root_data()) + part_bytes_.begin);
      case Collective::all_gather: return pull_slices();
      case Collective::all_gather_parts: return pull_parts();
      default: break;
    }
    switch (call_.type) {
      case DType::f32: return owner_->sum<float>(call_, number_);
      case DType::bf16: return owner_->sum<BFloat16>(call_, number_);
      default: return owner_->sum<double>(call_, number_);
    }
  }

  void* root_data() const { return owner_->board_->data(call_.root, number_); }
  std::size_t bytes_of(std::int64_t elements) const { return static_cast<std::size_t>(elements) * size_of(call_.type); }

  void copy_part(void* dst, const void* src) const {
    const auto bytes = static_cast<std::size_t>(part_bytes_.size());
    if (bytes == 0 || dst == src) return;
    std::memcpy(dst, src, bytes);
    if (!is_root()) owner_->count_bytes(bytes);
  }

  void pull_slices() const {
    for (int rank = 0; rank < owner_->size(); ++rank) {
      const Range slice = slice_of(call_.count, rank, owner_->size());
      if (rank == owner_->rank_ || slice.size() == 0) continue;
      const auto* theirs = static_cast<const char*>(owner_->board_->data(rank, number_));
      std::memcpy(static_cast<char*>(data_) + bytes_of(slice.begin), theirs + bytes_of(slice.begin),
                  bytes_of(slice.size()));
      owner_->count_bytes(bytes_of(slice.size()));
    }
  }

  void pull_parts() const {
    const auto bytes = static_cast<std::size_t>(call_.count) / static_cast<std::size_t>(owner_->size());
    for (int rank = 0; rank < owner_->size(); ++rank) {
      const std::size_t at = static_cast<std::size_t>(rank) * bytes;
      if (rank == owner_->rank_) continue;
      std::memcpy(static_cast<char*>(data_) + at, static_cast<const char*>(owner_->board_->data(rank, number_)) + at,
                  bytes);
      owner_->count_bytes(bytes);
    }
  }

  HostCommunicator* owner_;
  std::uint64_t number_;
  CollectiveCall call_;
  void* data_;        // as announced: the array, or `whole` for a call in parts
  void* part_;        // for gather and scatter only
  Range part_bytes_;  // for gather and scatter: byte range of this rank's part in `whole`
  Phase phase_ = Phase::announce;
  int met_ = 0;  // ranks below met_ have announced the same call
};

HostCommunicator::HostCommunicator(std::shared_ptr<CallBoard> board, int rank, int threads)
    : HostCollectives(rank, board->size()),
      board_(std::move(board)),
      threads_(threads),
      pointers_(static_cast<std::size_t>(board_->size())),
      outs_(pointers_) {}

void HostCommunicator::set_summands(int summands, std::int64_t stride) {
  HostCollectives::set_summands(summands, stride);
  pointers_.resize(static_cast<std::size_t>(size() * summands));
}

// Until board_->finish(), only this rank reads and writes its slice of every rank's data.
template <typename T>
void HostCommunicator::sum(const CollectiveCall& call, std::uint64_t number) {
  const auto summands = static_cast<std::size_t>(summands_);
  for (int rank = 0; rank < size(); ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    auto* const first = static_cast<T*>(board_->data(rank, number));
    outs_[r] = first;
    for (std::size_t i = 0; i < summands; ++i)
      pointers_[r * summands + i] = first + static_cast<std::int64_t>(i) * stride_;
  }
  std::span<void* const> outs = outs_;
  if (call.kind == Collective::reduce) outs = outs.subspan(static_cast<std::size_t>(call.root), 1);
  if (call.kind == Collective::reduce_scatter) outs = outs.subspan(static_cast<std::size_t>(rank_), 1);
  const Range slice = slice_of(call.count, rank_, size());
  tree_sum<T>(pointers_, outs, slice, threads_);
  const auto others = static_cast<std::size_t>(size() - 1);
  const auto written =
      std::count_if(outs.begin(), outs.end(), [&](void* out) { return out != outs_[static_cast<std::size_t>(rank_)]; });
  count_bytes((others * summands + static_cast<std::size_t>(written)) * static_cast<std::size_t>(slice.size()) *
              sizeof(T));
}

void HostCommunicator::enqueue(const CollectiveCall& call, void* data, void* part, std::span<const std::size_t> bytes,
                               Stream& stream) {
  Range mine;
  for (std::size_t rank = 0; rank < bytes.size() && rank <= static_cast<std::size_t>(rank_); ++rank)
    mine = {mine.end, mine.end + static_cast<std::int64_t>(bytes[rank])};
  static_cast<HostStream&>(stream).submit(Task(Run(*this, call, data, part, mine)));
}

std::vector<std::unique_ptr<Communicator>> make_host_communicators(std::string_view name,
                                                                   std::span<Context* const> contexts) {
  if (name != "host")
    throw Error(ErrorCode::usage, "--comm " + std::string(name) + " requires GPUs; use --comm host for CPU replicas");
  const auto board = std::make_shared<CallBoard>("host", static_cast<int>(contexts.size()));
  std::vector<std::unique_ptr<Communicator>> handles;
  for (Context* const context : contexts) {
    const auto* host = dynamic_cast<const HostContext*>(context);
    if (host == nullptr)
      throw Error(ErrorCode::usage,
                  "communicator host supports only CPU replicas, not " + to_string(context->device()));
    handles.push_back(
        std::make_unique<HostCommunicator>(board, static_cast<int>(handles.size()), host->options().threads));
  }
  return handles;
}

}  // namespace dp::kernels
