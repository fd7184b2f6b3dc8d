// Where the ranks of one communicator meet: each announces its calls in order, sees the others', and tells how far it
// is. No locks and no allocation; a rank writes its own lines only.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/comm/collective_call.h"
#include "kernels/host/shared_memory.h"

namespace dp::kernels {

class CallBoard {
 public:
  // Of threads of one process.
  CallBoard(std::string name, int size);
  // Of processes: the board lies in memory that all have mapped, `lines_bytes(size)` of it, zeroed, and the ranks reach each
  // other's data through `peers`. `memory` is kept as long as the board.
  CallBoard(std::string name, int size, void* lines, std::shared_ptr<void> memory, std::unique_ptr<PeerMemory> peers);
  static std::size_t lines_bytes(int size) { return static_cast<std::size_t>(size) * sizeof(Line); }

  int size() const { return static_cast<int>(ranks_.size()); }

  // `call` is the rank's call number `number`, from 0. False, and nothing done, while a rank is still busy with the
  // call that this one would overwrite. Error(usage) for data that the other ranks can not reach.
  bool announce(int rank, std::uint64_t number, const CollectiveCall& call, void* data);
  // True when `other` has announced that call. Error(usage) naming both calls when it made a different one.
  bool met(int rank, int other, std::uint64_t number) const;
  void* data(int rank, std::uint64_t number) const;

  // Finished: this rank will not touch the others' memory for that call again. Left: nor look at their announcements.
  void finish(int rank, std::uint64_t number) { line(rank).finished.store(number + 1, std::memory_order_release); }
  void leave(int rank, std::uint64_t number) { line(rank).left.store(number + 1, std::memory_order_release); }
  bool all_finished(std::uint64_t number) const;

 private:
  static constexpr std::uint64_t kSlots = 16;  // calls that a rank may be ahead of another
  struct Slot {
    CollectiveCall call;
    void* data = nullptr;  // in the memory of the rank that announced it
    SharedPlace place;     // of processes: the same for the others
  };
  struct Line {  // written by its rank only; the counters are numbers of calls; all zero at first
    alignas(64) std::atomic<std::uint64_t> announced{0};
    std::atomic<std::uint64_t> finished{0};
    std::atomic<std::uint64_t> left{0};
    std::uint64_t known_left = 0;  // the least `left` of all when it was last looked at
    alignas(64) std::array<Slot, kSlots> slots;
  };
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
  Line& line(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  const Line& line(int rank) const { return ranks_[static_cast<std::size_t>(rank)]; }

  std::string name_;
  std::vector<Line> own_lines_;
  std::shared_ptr<void> memory_;
  std::unique_ptr<PeerMemory> peers_;  // null: all ranks are here
  std::span<Line> ranks_;
};

}  // namespace dp::kernels
