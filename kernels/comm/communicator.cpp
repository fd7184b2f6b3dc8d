#include "kernels/comm/communicator.h"

#include <algorithm>
#include <numeric>

#include "dp/error.h"

namespace dp::kernels {

FailingCall failing_call;

void count_call(int rank) {
  if (failing_call.left.load(std::memory_order_relaxed) <= 0) return;
  if (failing_call.rank >= 0 && failing_call.rank != rank) return;
  if (failing_call.left.fetch_sub(1) == 1)
    throw Error(ErrorCode::device, "a collective failed: failure injected by DP_FAIL");
}

Range slice_of(std::int64_t count, int rank, int size) {
  const std::int64_t blocks = (count + kSliceBlock - 1) / kSliceBlock;
  const auto bound = [&](std::int64_t r) {
    const std::int64_t block = blocks / size * r + std::min<std::int64_t>(blocks % size, r);
    return std::min(count, block * kSliceBlock);
  };
  return {bound(rank), bound(rank + 1)};
}

std::size_t bytes_before(std::span<const std::size_t> bytes, int rank) {
  return std::accumulate(bytes.begin(), bytes.begin() + rank, std::size_t{0});
}

std::string to_string(const CollectiveCall& call) {
  static constexpr const char* kNames[] = {"broadcast",  "reduce",           "all_reduce", "reduce_scatter",
                                           "all_gather", "all_gather_parts", "gather",     "scatter"};
  const bool parts = call.kind == Collective::gather || call.kind == Collective::scatter;
  const bool by_bytes = parts || call.kind == Collective::all_gather_parts;
  std::string text = kNames[static_cast<std::size_t>(call.kind)];
  text += " of " + std::to_string(call.count);
  text += by_bytes ? " bytes" : std::string(" ") + dp::to_string(call.type) + " elements";
  const bool rooted = parts || call.kind == Collective::broadcast || call.kind == Collective::reduce;
  if (rooted) text += " with root " + std::to_string(call.root);
  if (call.summands != 1) text += ", " + std::to_string(call.summands) + " summands per rank";
  return text;
}

void require_same_call(const std::string& name, std::uint64_t number, int rank, const CollectiveCall& mine, int other,
                       const CollectiveCall& theirs) {
  if (mine == theirs) return;
  CollectiveCall same_sizes = theirs;
  same_sizes.parts_hash = mine.parts_hash;
  throw Error(ErrorCode::usage, "communicator " + name + ", call " + std::to_string(number) + ": rank " +
                                    std::to_string(rank) + " calls " + to_string(mine) + ", rank " +
                                    std::to_string(other) + " calls " + to_string(theirs) +
                                    (mine == same_sizes ? " in parts of other sizes" : "") +
                                    "; every rank must make the same calls in the same order");
}

}  // namespace dp::kernels
