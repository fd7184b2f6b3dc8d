#include "benchmarks/programs/collectives.h"

#include <algorithm>
#include <chrono>

namespace dp::benchmarks {
namespace {

using Kind = TimedCollective::Kind;
using Clock = std::chrono::steady_clock;

// Small integers: their float32 sums are exact in any order.
float value(int rank, std::int64_t i) { return static_cast<float>((rank + 1) * (i % 97 + 1)); }
float sum_of(int ranks, std::int64_t i) { return static_cast<float>(ranks * (ranks + 1) / 2 * (i % 97 + 1)); }

bool has_parts(Kind kind) { return kind == Kind::all_gather_parts || kind == Kind::gather || kind == Kind::scatter; }

}  // namespace

const std::vector<TimedCollective>& all_collectives() {
  static const std::vector<TimedCollective> all{
      {Kind::all_reduce, "all_reduce", true, false},  {Kind::reduce, "reduce", true, true},
      {Kind::broadcast, "broadcast", false, true},    {Kind::reduce_scatter, "reduce_scatter", true, false},
      {Kind::all_gather, "all_gather", false, false}, {Kind::all_gather_parts, "all_gather_parts", false, false},
      {Kind::gather, "gather", false, true},          {Kind::scatter, "scatter", false, true}};
  return all;
}

Collectives::Collectives(kernels::Communicator& communicator, kernels::Context& context, kernels::Stream& stream,
                         std::int64_t most_bytes)
    : communicator_(communicator), stream_(stream) {
  const auto bytes = static_cast<std::size_t>(most_bytes) + 4 * static_cast<std::size_t>(communicator.size());
  data_ = context.allocate_for_peers(bytes);
  part_ = context.allocate_for_peers(bytes);
  host_.resize(bytes / 4);
  part_bytes_.resize(static_cast<std::size_t>(communicator.size()));
}

std::int64_t Collectives::part_count(std::int64_t count) const {
  return std::max<std::int64_t>(1, count / communicator_.size());
}

void Collectives::fill(const TimedCollective& which, std::int64_t count) {
  const int rank = communicator_.rank();
  const std::int64_t whole = has_parts(which.kind) ? part_count(count) * communicator_.size() : count;
  for (std::int64_t i = 0; i < whole; ++i) host_[static_cast<std::size_t>(i)] = value(rank, i);
  const auto bytes = static_cast<std::size_t>(whole) * 4;
  stream_.copy(data(), host_.data(), bytes);
  stream_.copy(part(), host_.data(), bytes);
  stream_.synchronize();
}

void Collectives::call(const TimedCollective& which, std::int64_t count) {
  std::fill(part_bytes_.begin(), part_bytes_.end(), static_cast<std::size_t>(part_count(count)) * 4);
  switch (which.kind) {
    case Kind::broadcast: return communicator_.broadcast(data(), count, DType::f32, 0, stream_);
    case Kind::reduce: return communicator_.reduce(data(), count, DType::f32, 0, stream_);
    case Kind::all_reduce: return communicator_.all_reduce(data(), count, DType::f32, stream_);
    case Kind::reduce_scatter: return communicator_.reduce_scatter(data(), count, DType::f32, stream_);
    case Kind::all_gather: return communicator_.all_gather(data(), count, DType::f32, stream_);
    case Kind::all_gather_parts: return communicator_.all_gather_parts(data(), part_bytes_.front(), stream_);
    case Kind::gather: return communicator_.gather(part(), data(), part_bytes_, 0, stream_);
    case Kind::scatter: return communicator_.scatter(data(), part(), part_bytes_, 0, stream_);
  }
}

std::int64_t Collectives::check(const TimedCollective& which, std::int64_t count) {
  fill(which, count);
  call(which, count);
  const int rank = communicator_.rank(), ranks = communicator_.size();
  const std::int64_t each = part_count(count), whole = has_parts(which.kind) ? each * ranks : count;
  const bool in_part = which.kind == Kind::scatter;
  stream_.copy(host_.data(), in_part ? part() : data(), static_cast<std::size_t>(whole) * 4);
  stream_.synchronize();
  const kernels::Range mine = kernels::slice_of(count, rank, ranks);
  const auto expected = [&](std::int64_t i) {
    switch (which.kind) {
      case Kind::broadcast: return value(0, i);
      case Kind::reduce: return rank == 0 ? sum_of(ranks, i) : value(rank, i);
      case Kind::all_reduce: return sum_of(ranks, i);
      case Kind::reduce_scatter: return i >= mine.begin && i < mine.end ? sum_of(ranks, i) : value(rank, i);
      case Kind::all_gather:
        for (int owner = 0; owner < ranks; ++owner)
          if (const kernels::Range slice = kernels::slice_of(count, owner, ranks); i >= slice.begin && i < slice.end)
            return value(owner, i);
        return 0.0f;
      case Kind::all_gather_parts: return value(static_cast<int>(i / each), i);
      case Kind::gather: return rank == 0 ? value(static_cast<int>(i / each), i % each) : value(rank, i);
      case Kind::scatter: return i < each ? value(0, rank * each + i) : value(rank, i);
    }
    return 0.0f;
  };
  std::int64_t wrong = 0;
  for (std::int64_t i = 0; i < whole; ++i) wrong += host_[static_cast<std::size_t>(i)] != expected(i);
  return wrong;
}

double Collectives::time(const TimedCollective& which, std::int64_t count, int calls) {
  communicator_.all_reduce(part(), 1, DType::f32, stream_);  // synchronises all ranks
  stream_.synchronize();
  const auto start = Clock::now();
  for (int i = 0; i < calls; ++i) call(which, count);
  stream_.synchronize();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace dp::benchmarks
