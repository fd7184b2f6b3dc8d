// Synchronisation state of the ranks of one communicator. Each rank announces its calls in order, reads the other
// ranks' calls, and publishes its progress. No locks and no allocation; a rank writes only its own line.
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
  // For ranks that are threads of one process.
  CallBoard(std::string name, int size);
  // For ranks that are processes. `lines` is shared memory of lines_bytes(size) bytes, zeroed and mapped by all ranks.
  // `peers` maps the data of other ranks. The board keeps `memory`, the owner of `lines`, for its lifetime.
  CallBoard(std::string name, int size, void* lines, std::shared_ptr<void> memory, std::unique_ptr<PeerMemory> peers);
  static std::size_t lines_bytes(int size) { return static_cast<std::size_t>(size) * sizeof(Line); }

  int size() const { return static_cast<int>(ranks_.size()); }

  // Announces `call` as the rank's call number `number`, counted from 0. Returns false and does nothing while another
  // rank still uses the slot that this call would overwrite. Error(usage) if other ranks cannot access `data`.
  bool announce(int rank, std::uint64_t number, const CollectiveCall& call, void* data);
  // Whether `other` has announced its call number `number`. Error(usage) with both calls if they differ.
  bool met(int rank, int other, std::uint64_t number) const;
  void* data(int rank, std::uint64_t number) const;

  // finish(): this rank no longer accesses other ranks' memory for this call. leave(): it also no longer reads their
  // announcements.
  void finish(int rank, std::uint64_t number) { line(rank).finished.store(number + 1, std::memory_order_release); }
  void leave(int rank, std::uint64_t number) { line(rank).left.store(number + 1, std::memory_order_release); }
  bool all_finished(std::uint64_t number) const;

 private:
  static constexpr std::uint64_t kSlots = 16;  // calls that a rank may be ahead of another
  struct Slot {
    CollectiveCall call;
    void* data = nullptr;  // address in the process of the announcing rank
    SharedPlace place;     // for processes: where other ranks find the data
  };
  struct Line {  // written only by its rank; the counters count calls; initially all zero
    alignas(64) std::atomic<std::uint64_t> announced{0};
    std::atomic<std::uint64_t> finished{0};
    std::atomic<std::uint64_t> left{0};
    std::uint64_t known_left = 0;  // cached minimum of `left` over all ranks
    alignas(64) std::array<Slot, kSlots> slots;
  };
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
  Line& line(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  const Line& line(int rank) const { return ranks_[static_cast<std::size_t>(rank)]; }

  std::string name_;
  std::vector<Line> own_lines_;
  std::shared_ptr<void> memory_;
  std::unique_ptr<PeerMemory> peers_;  // null: all ranks are in this process
  std::span<Line> ranks_;
};

}  // namespace dp::kernels
