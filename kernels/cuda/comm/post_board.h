// Synchronises the ranks' threads while they enqueue a collective: each rank posts the data that the other ranks need.
// Lock-free; a rank writes only its own line.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

#include "kernels/backend.h"
#include "kernels/capture_turn.h"
#include "kernels/comm/collective_call.h"
#include "kernels/host/spin.h"

namespace dp::kernels::cuda {

class PostBoard {
 public:
  explicit PostBoard(int size) : lines_(static_cast<std::size_t>(size)) {}
  int size() const { return static_cast<int>(lines_.size()); }

  struct Post {
    const std::byte* data = nullptr;    // device memory of the rank
    const std::byte* staged = nullptr;  // copy of data in pinned memory; null: not needed
    cudaEvent_t reached = nullptr;      // recorded on the rank's stream
    CollectiveCall call;                // must be the same on all ranks
  };

  // Publishes the rank's post `number`, counted from 0.
  void put(int rank, std::uint64_t number, const Post& post) {
    Line& line = lines_[static_cast<std::size_t>(rank)];
    line.posts[number % kSlots] = post;
    line.posted.store(number + 1, std::memory_order_release);
  }
  // Waits until that rank has put post `number`. The post stays valid until the caller puts its own post `number` + 1.
  // Throws Aborted when the flag is set, GivenUp when `turn` is given up. Both may be null.
  const Post& wait(int rank, std::uint64_t number, const AbortFlag* abort, const CaptureTurn* turn) const {
    const Line& line = lines_[static_cast<std::size_t>(rank)];
    Spinner spinner;
    while (line.posted.load(std::memory_order_acquire) <= number) {
      if (abort != nullptr && abort->load(std::memory_order_relaxed)) throw Aborted();
      if (turn != nullptr && turn->given_up()) throw CaptureTurn::GivenUp();
      spinner.wait();
    }
    return line.posts[number % kSlots];
  }

  // Restarts the rank's posts at number 0.
  void forget(int rank) { lines_[static_cast<std::size_t>(rank)].posted.store(0, std::memory_order_release); }

 private:
  static constexpr std::uint64_t kSlots = 2;
  struct Line {
    alignas(64) std::atomic<std::uint64_t> posted{0};
    std::array<Post, kSlots> posts;
  };
  std::vector<Line> lines_;
};

}  // namespace dp::kernels::cuda
