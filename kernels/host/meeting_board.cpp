#include "kernels/host/meeting_board.h"

#include <algorithm>

#include "dp/error.h"

namespace dp::kernels {

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
  if (call.summands != 1) text += ", " + std::to_string(call.summands) + " summands a rank";
  return text;
}

bool MeetingBoard::announce(int rank, std::uint64_t number, const CollectiveCall& call, void* data) {
  Line& mine = line(rank);
  if (number >= mine.room) {
    std::uint64_t slowest = number;
    for (const Line& other : ranks_) slowest = std::min(slowest, other.left.load(std::memory_order_acquire));
    mine.room = slowest + kSlots;
    if (number >= mine.room) return false;
  }
  mine.slots[number % kSlots] = {call, data};
  mine.announced.store(number + 1, std::memory_order_release);
  return true;
}

bool MeetingBoard::met(int rank, int other, std::uint64_t number) const {
  if (line(other).announced.load(std::memory_order_acquire) <= number) return false;
  const CollectiveCall& mine = line(rank).slots[number % kSlots].call;
  const CollectiveCall& theirs = line(other).slots[number % kSlots].call;
  if (mine == theirs) return true;
  CollectiveCall same_sizes = theirs;
  same_sizes.parts_hash = mine.parts_hash;
  throw Error(ErrorCode::usage, "communicator " + name_ + ", call " + std::to_string(number) + ": rank " +
                                    std::to_string(rank) + " makes " + to_string(mine) + ", rank " +
                                    std::to_string(other) + " makes " + to_string(theirs) +
                                    (mine == same_sizes ? " in parts of other sizes" : "") +
                                    "; every rank must make the same calls in the same order");
}

bool MeetingBoard::all_finished(std::uint64_t number) const {
  return std::all_of(ranks_.begin(), ranks_.end(),
                     [number](const Line& one) { return one.finished.load(std::memory_order_acquire) > number; });
}

}  // namespace dp::kernels
