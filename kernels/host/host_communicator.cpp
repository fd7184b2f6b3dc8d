#include "kernels/host/host_communicator.h"

#include <algorithm>
#include <cstring>

#include "kernels/host/host_stream.h"
#include "kernels/host/tree_sum.h"

namespace dp::kernels {

// Announces the call, waits for the ranks whose memory it needs, does this rank's share, and waits until nobody needs
// this rank's memory any more.
class HostCommunicator::Run {
 public:
  Run(HostCommunicator& owner, const CollectiveCall& call, void* data, void* part, Range part_bytes)
      : owner_(&owner), number_(owner.calls_++), call_(call), data_(data), part_(part), part_bytes_(part_bytes) {}

  bool operator()() {
    MeetingBoard& board = *owner_->board_;
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
    if (call_.type == DType::f32)
      owner_->sum<float>(call_, number_);
    else
      owner_->sum<double>(call_, number_);
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
  void* data_;        // as announced: the range, or the root's whole
  void* part_;        // of gather and scatter
  Range part_bytes_;  // of gather and scatter: this rank's bytes of the whole
  Phase phase_ = Phase::announce;
  int met_ = 0;  // ranks below it have announced the same call
};

HostCommunicator::HostCommunicator(std::shared_ptr<MeetingBoard> board, int rank, int threads)
    : board_(std::move(board)),
      rank_(rank),
      threads_(threads),
      pointers_(static_cast<std::size_t>(board_->size())),
      outs_(pointers_) {}

void HostCommunicator::bring(int summands, std::int64_t stride) {
  summands_ = summands;
  stride_ = stride;
  pointers_.resize(static_cast<std::size_t>(size() * summands));
}

// This rank's slice of everyone's data is its own to read and write until it says that it has finished.
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

void HostCommunicator::broadcast(void* data, std::int64_t count, DType type, int root, Stream& stream) {
  enqueue_typed(Collective::broadcast, data, count, type, root, stream);
}
void HostCommunicator::reduce(void* data, std::int64_t count, DType type, int root, Stream& stream) {
  enqueue_typed(Collective::reduce, data, count, type, root, stream);
}
void HostCommunicator::all_reduce(void* data, std::int64_t count, DType type, Stream& stream) {
  enqueue_typed(Collective::all_reduce, data, count, type, 0, stream);
}
void HostCommunicator::reduce_scatter(void* data, std::int64_t count, DType type, Stream& stream) {
  enqueue_typed(Collective::reduce_scatter, data, count, type, 0, stream);
}
void HostCommunicator::all_gather(void* data, std::int64_t count, DType type, Stream& stream) {
  enqueue_typed(Collective::all_gather, data, count, type, 0, stream);
}
void HostCommunicator::gather(const void* part, void* whole, std::span<const std::size_t> bytes, int root,
                              Stream& stream) {
  enqueue_parts(Collective::gather, whole, const_cast<void*>(part), bytes, root, stream);
}
void HostCommunicator::scatter(const void* whole, void* part, std::span<const std::size_t> bytes, int root,
                               Stream& stream) {
  enqueue_parts(Collective::scatter, const_cast<void*>(whole), part, bytes, root, stream);
}

void HostCommunicator::enqueue_typed(Collective kind, void* data, std::int64_t count, DType type, int root,
                                     Stream& stream) {
  check_root(root);
  if (count < 0 || (type != DType::f32 && type != DType::f64))
    throw Error(ErrorCode::usage, "communicator host moves 0 or more elements of float32 or float64, not " +
                                      std::to_string(count) + " of " + dp::to_string(type));
  const bool sums = kind == Collective::reduce || kind == Collective::all_reduce || kind == Collective::reduce_scatter;
  if (size() == 1 && (!sums || summands_ == 1)) return;
  static_cast<HostStream&>(stream).submit(
      Task(Run(*this, {kind, type, root, count, 0, sums ? summands_ : 1}, data, nullptr, {})));
}

void HostCommunicator::all_gather_parts(void* whole, std::size_t bytes, Stream& stream) {
  if (size() == 1 || bytes == 0) return;
  const CollectiveCall call{
      Collective::all_gather_parts, DType::u8, 0, static_cast<std::int64_t>(bytes) * size(), 0, 1};
  static_cast<HostStream&>(stream).submit(Task(Run(*this, call, whole, nullptr, {})));
}

void HostCommunicator::enqueue_parts(Collective kind, void* whole, void* part, std::span<const std::size_t> bytes,
                                     int root, Stream& stream) {
  check_root(root);
  if (bytes.size() != static_cast<std::size_t>(size()))
    throw Error(ErrorCode::usage, "gather and scatter over " + std::to_string(size()) +
                                      " ranks need as many sizes, not " + std::to_string(bytes.size()));
  CollectiveCall call{kind, DType::u8, root, 0, kEmptyPartsHash, 1};
  Range mine;
  for (std::size_t rank = 0; rank < bytes.size(); ++rank) {
    if (rank == static_cast<std::size_t>(rank_))
      mine = {call.count, call.count + static_cast<std::int64_t>(bytes[rank])};
    call.count += static_cast<std::int64_t>(bytes[rank]);
    call.parts_hash = hash_part(call.parts_hash, bytes[rank]);
  }
  if (size() == 1) {
    const bool gathers = kind == Collective::gather;
    return stream.copy(gathers ? whole : part, gathers ? part : whole, bytes[0]);
  }
  static_cast<HostStream&>(stream).submit(Task(Run(*this, call, whole, part, mine)));
}

void HostCommunicator::check_root(int root) const {
  if (root < 0 || root >= size())
    throw Error(ErrorCode::usage, "rank " + std::to_string(root) + " is not one of the " + std::to_string(size()) +
                                      " ranks of communicator host; name a root from 0 to " +
                                      std::to_string(size() - 1));
}

std::vector<std::unique_ptr<Communicator>> make_host_communicators(std::string_view name,
                                                                   std::span<Context* const> contexts) {
  if (name != "host")
    throw Error(ErrorCode::usage, "replicas on the host have the communicator host, not '" + std::string(name) + "'");
  const auto board = std::make_shared<MeetingBoard>("host", static_cast<int>(contexts.size()));
  std::vector<std::unique_ptr<Communicator>> handles;
  for (Context* const context : contexts) {
    const auto* host = dynamic_cast<const HostContext*>(context);
    if (host == nullptr)
      throw Error(ErrorCode::usage,
                  "communicator host takes replicas on the host only, not " + to_string(context->device()));
    handles.push_back(
        std::make_unique<HostCommunicator>(board, static_cast<int>(handles.size()), host->options().threads));
  }
  return handles;
}

}  // namespace dp::kernels
