#include "kernels/comm/tcp_flow.h"

#include <algorithm>
#include <cstring>

#include "kernels/comm/tree_sum.h"

namespace dp::kernels {

TcpFlow::TcpFlow(std::string name, int rank, int size)
    : name_(std::move(name)), rank_(rank), size_(size), transfers_(static_cast<std::size_t>(size)) {}

void TcpFlow::begin(const WireJob& job) {
  const CollectiveCall& call = job.call;
  job_ = &job;
  sums_ = is_sum(call.kind);
  element_ = static_cast<std::int64_t>(size_of(call.type));
  summands_ = static_cast<std::size_t>(call.summands);
  own_ = owned_by(call, rank_, size_);
  header_ = {job.number,
             call.parts_hash,
             call.count,
             call.root,
             call.summands,
             static_cast<std::uint8_t>(call.kind),
             static_cast<std::uint8_t>(call.type),
             {}};
  summed_ = 0;
  pieces_ = sums_ ? (bytes_of(own_) + kPiece - 1) / kPiece : 0;
  parts_.resize(static_cast<std::size_t>(size_) * summands_);
  for (int peer = 0; peer < size_; ++peer)
    if (peer != rank_) plan(peer);
  if (call.kind == Collective::reduce && rank_ != call.root) results_.resize(kWindow * kPiece);
  if ((call.kind == Collective::gather || call.kind == Collective::scatter) && rank_ == call.root) {
    char* const own = static_cast<char*>(job.data) + part_offset(rank_);
    const std::size_t bytes = job.bytes[static_cast<std::size_t>(rank_)];
    if (bytes > 0 && own != job.part)
      call.kind == Collective::gather ? std::memcpy(own, job.part, bytes) : std::memcpy(job.part, own, bytes);
  }
  sum_arrived();
}

void TcpFlow::plan(int peer) {
  Transfer& one = transfer(peer);
  one.out = one.in = 0;
  one.out_first = one.in_first = 0;
  plan_first(peer);
  one.out_bytes = kHeader + one.out_first + (has_second(rank_, peer) ? bytes_of(own_) : 0);
  const Range theirs = owned_by(job_->call, peer, size_);
  one.in_bytes = kHeader + one.in_first + (has_second(peer, rank_) ? bytes_of(theirs) : 0);
}

void TcpFlow::plan_first(int peer) {
  Transfer& one = transfer(peer);
  const int root = job_->call.root;
  const Range theirs = owned_by(job_->call, peer, size_);
  switch (job_->call.kind) {
    case Collective::all_reduce:
    case Collective::reduce:
    case Collective::reduce_scatter:
      one.out_first = bytes_of(theirs) * summands_;
      one.in_first = bytes_of(own_) * summands_;
      one.window.resize(std::max(one.window.size(), kWindow * kPiece * summands_));
      return;
    case Collective::broadcast:
      if (rank_ == root) one.out_first = bytes_of(theirs);
      if (peer == root) one.in_first = bytes_of(own_);
      one.out_begin = at(theirs.begin);
      one.in_begin = at(own_.begin);
      return;
    case Collective::gather:
      if (peer == root) one.out_first = job_->bytes[static_cast<std::size_t>(rank_)];
      if (rank_ == root) one.in_first = job_->bytes[static_cast<std::size_t>(peer)];
      one.out_begin = static_cast<char*>(job_->part);
      if (rank_ == root) one.in_begin = static_cast<char*>(job_->data) + part_offset(peer);
      return;
    case Collective::scatter:
      if (rank_ == root) one.out_first = job_->bytes[static_cast<std::size_t>(peer)];
      if (peer == root) one.in_first = job_->bytes[static_cast<std::size_t>(rank_)];
      if (rank_ == root) one.out_begin = static_cast<char*>(job_->data) + part_offset(peer);
      one.in_begin = static_cast<char*>(job_->part);
      return;
    case Collective::all_gather:
    case Collective::all_gather_parts: return;
  }
}

bool TcpFlow::has_second(int from, int to) const {
  const int root = job_->call.root;
  switch (job_->call.kind) {
    case Collective::all_reduce:
    case Collective::all_gather:
    case Collective::all_gather_parts: return true;
    case Collective::reduce: return to == root;
    case Collective::broadcast: return from == root || to != root;
    default: return false;
  }
}

std::size_t TcpFlow::part_offset(int rank) const {
  std::size_t offset = 0;
  for (int other = 0; other < rank; ++other) offset += job_->bytes[static_cast<std::size_t>(other)];
  return offset;
}

std::span<const char> TcpFlow::to_send(int peer) {
  const Transfer& one = transfer(peer);
  if (one.out < kHeader) return {reinterpret_cast<const char*>(&header_) + one.out, kHeader - one.out};
  const std::size_t first = one.out - kHeader;
  if (first < one.out_first)
    return sums_ ? send_values(peer, first) : std::span<const char>(one.out_begin + first, one.out_first - first);
  if (one.out == one.out_bytes) return {};
  const std::size_t done = first - one.out_first, ready = second_ready();
  const std::size_t room = results_in_ring() ? kPiece - done % kPiece : ready - done;
  return {second_source(done), std::min(ready - done, room)};
}

std::span<char> TcpFlow::to_receive(int peer) {
  Transfer& one = transfer(peer);
  if (one.in < kHeader) return {reinterpret_cast<char*>(&one.theirs) + one.in, kHeader - one.in};
  const std::size_t first = one.in - kHeader;
  if (first < one.in_first)
    return sums_ ? window_room(peer, first) : std::span<char>(one.in_begin + first, one.in_first - first);
  const std::size_t left = one.in_bytes - one.in;
  const Range theirs = owned_by(job_->call, peer, size_);
  return {at(theirs.begin) + (first - one.in_first), left};
}

void TcpFlow::sent(int peer, std::size_t bytes) {
  Transfer& one = transfer(peer);
  if (one.out >= kHeader) bytes_sent_ += static_cast<std::int64_t>(bytes);
  one.out += bytes;
  if (sums_) sum_arrived();  // sending may free room for another result piece
}

void TcpFlow::received(int peer, std::size_t bytes) {
  Transfer& one = transfer(peer);
  const bool knew = one.in >= kHeader;
  one.in += bytes;
  if (!knew && one.in >= kHeader) {
    const Header& their = one.theirs;
    const CollectiveCall call{static_cast<Collective>(std::min<int>(their.kind, static_cast<int>(Collective::scatter))),
                              static_cast<DType>(their.type),
                              their.root,
                              their.count,
                              their.parts_hash,
                              their.summands};
    if (their.number != job_->number)
      throw Error(ErrorCode::device, "communicator " + name_ + ": rank " + std::to_string(peer) + " is at call " +
                                         std::to_string(their.number) + ", rank " + std::to_string(rank_) +
                                         " at call " + std::to_string(job_->number) +
                                         "; do all ranks run the same program?");
    require_same_call(name_, job_->number, rank_, job_->call, peer, call);
  }
  if (sums_) sum_arrived();
}

bool TcpFlow::done() const {
  if (summed_ < pieces_) return false;
  for (int peer = 0; peer < size_; ++peer)
    if (peer != rank_ && (sends_more(peer) || expects_more(peer))) return false;
  return true;
}

// A piece of a reduction is sent as all its summands in sequence.
std::span<const char> TcpFlow::send_values(int peer, std::size_t done) {
  const Range theirs = owned_by(job_->call, peer, size_);
  const std::size_t slice = bytes_of(theirs), piece = done / (kPiece * summands_);
  const std::size_t within = done - piece * kPiece * summands_, length = std::min(kPiece, slice - piece * kPiece);
  const std::size_t summand = within / length, offset = within % length;
  const char* const values = at(theirs.begin + static_cast<std::int64_t>(summand) * job_->stride);
  return {values + piece * kPiece + offset, summands_ == 1 ? slice - done : length - offset};
}

std::span<char> TcpFlow::window_room(int peer, std::size_t done) {
  const std::size_t piece = done / (kPiece * summands_);
  if (piece >= summed_ + kWindow) return {};
  const std::size_t within = done - piece * kPiece * summands_;
  return {transfer(peer).window.data() + (piece % kWindow) * kPiece * summands_ + within,
          piece_bytes(piece) * summands_ - within};
}

std::size_t TcpFlow::piece_bytes(std::size_t piece) const { return std::min(kPiece, bytes_of(own_) - piece * kPiece); }

std::size_t TcpFlow::pieces_from(int peer) const {
  const Transfer& one = transfer(peer);
  if (one.in < kHeader) return 0;
  const std::size_t arrived = std::min(one.in - kHeader, one.in_first);
  return arrived == one.in_first ? pieces_ : arrived / (kPiece * summands_);
}

void TcpFlow::sum_arrived() {
  if (summed_ == pieces_) return;
  std::size_t complete = pieces_;
  for (int peer = 0; peer < size_; ++peer)
    if (peer != rank_) complete = std::min(complete, pieces_from(peer));
  if (results_in_ring()) {
    const Transfer& root = transfer(job_->call.root);
    const std::size_t before = kHeader + root.out_first, gone = root.out > before ? (root.out - before) / kPiece : 0;
    complete = std::min(complete, gone + kWindow);
  }
  for (; summed_ < complete; ++summed_) switch (job_->call.type) {
      case DType::f32: sum_piece<float>(summed_); break;
      case DType::bf16: sum_piece<BFloat16>(summed_); break;
      default: sum_piece<double>(summed_);
    }
}

template <typename T>
void TcpFlow::sum_piece(std::size_t piece) {
  const std::size_t length = piece_bytes(piece);
  for (int rank = 0; rank < size_; ++rank)
    for (std::size_t i = 0; i < summands_; ++i) {
      char* const here = at(own_.begin + static_cast<std::int64_t>(i) * job_->stride) + piece * kPiece;
      parts_[static_cast<std::size_t>(rank) * summands_ + i] =
          rank == rank_ ? here : transfer(rank).window.data() + (piece % kWindow) * kPiece * summands_ + i * length;
    }
  void* out = results_in_ring() ? results_.data() + (piece % kWindow) * kPiece : at(own_.begin) + piece * kPiece;
  tree_sum<T>(parts_, std::span<void* const>(&out, 1), {0, static_cast<std::int64_t>(length / sizeof(T))}, 1);
}

std::size_t TcpFlow::second_ready() const {
  if (sums_) return std::min(summed_ * kPiece, bytes_of(own_));
  const int root = job_->call.root;
  if (job_->call.kind != Collective::broadcast || rank_ == root) return bytes_of(own_);
  const Transfer& source = transfer(root);
  return source.in < kHeader ? 0 : std::min(source.in - kHeader, source.in_first);
}

const char* TcpFlow::second_source(std::size_t done) const {
  if (results_in_ring()) return results_.data() + done % (kWindow * kPiece);
  return at(own_.begin) + done;
}

}  // namespace dp::kernels
