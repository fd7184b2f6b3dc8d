#include "kernels/comm/call_board.h"

#include <algorithm>

#include "dp/error.h"

namespace dp::kernels {

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

}  // namespace dp::kernels
