#include "kernels/comm/host_communicator.h"

#include <algorithm>
#include <cstring>

#include "kernels/comm/tree_sum.h"
#include "kernels/host/host_stream.h"

namespace dp::kernels {

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
