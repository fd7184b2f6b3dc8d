#include "simulated_cuda/emulator/grid.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <numeric>
#include <utility>
#include <vector>

#include "simulated_cuda/emulator/block.h"
#include "simulated_cuda/emulator/spin_watch.h"
#include "simulated_cuda/runtime/quiet_lock.h"
#include "simulated_cuda/simulation.h"

namespace dp::simt {
namespace {

// Reuses blocks, whose stacks are in the cache. Holds at most as many as launches have run at once.
class BlockPool {
 public:
  std::unique_ptr<Block> take() {
    const QuietLock lock(mutex_);
    if (idle_.empty()) return std::make_unique<Block>();
    auto block = std::move(idle_.back());
    idle_.pop_back();
    return block;
  }
  void give_back(std::unique_ptr<Block> block) {
    const QuietLock lock(mutex_);
    idle_.push_back(std::move(block));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Block>> idle_;
};

BlockPool& pool() {
  static BlockPool blocks;
  return blocks;
}

// The blocks that have started and not ended.
class Residents {
 public:
  explicit Residents(std::size_t most) { blocks_.reserve(most); }
  ~Residents() {
    for (auto& block : blocks_) {
      block->abandon();
      pool().give_back(std::move(block));
    }
  }
  Residents(const Residents&) = delete;
  Residents& operator=(const Residents&) = delete;

  bool empty() const { return blocks_.empty(); }
  std::size_t size() const { return blocks_.size(); }
  Block& operator[](std::size_t i) { return *blocks_[i]; }
  Block& add() {
    blocks_.push_back(pool().take());
    return *blocks_.back();
  }
  void remove(std::size_t i) {
    pool().give_back(std::move(blocks_[i]));
    blocks_.erase(blocks_.begin() + static_cast<std::ptrdiff_t>(i));
  }

 private:
  std::vector<std::unique_ptr<Block>> blocks_;
};

std::vector<unsigned> block_order(unsigned count) {
  std::vector<unsigned> order(count);
  std::iota(order.begin(), order.end(), 0u);
  if (simulation().order == ThreadOrder::reverse) std::iota(order.rbegin(), order.rend(), 0u);
  if (simulation().order == ThreadOrder::random) {
    std::uint32_t state = simulation().seed * 747796405u + 1;
    for (unsigned i = 1; i < count; ++i) {
      state = state * 1664525u + 1013904223u;
      std::swap(order[i], order[(state >> 8) % (i + 1)]);
    }
  }
  return order;
}

}  // namespace

std::string check_shape(const Grid& grid) {
  const auto shape = [](dim3 d) {
    return "(" + std::to_string(d.x) + ", " + std::to_string(d.y) + ", " + std::to_string(d.z) + ")";
  };
  const dim3 g = grid.grid, b = grid.block;
  const std::size_t threads = std::size_t{b.x} * b.y * b.z;
  if (threads == 0 || threads > Block::kMaxThreads || b.x > 1024 || b.y > 1024 || b.z > 64)
    return "a block of " + shape(b) + " threads";
  if (g.x == 0 || g.y == 0 || g.z == 0 || g.x > 0x7fffffffu || g.y > 65535 || g.z > 65535)
    return "a grid of " + shape(g) + " blocks";
  return {};
}

Failure run_grid(const Grid& grid, std::size_t& static_bytes) {
  const SpinWatch watch(grid.kernel, grid.device);
  block_shape = grid.block;
  grid_shape = grid.grid;
  const unsigned count = grid.grid.x * grid.grid.y * grid.grid.z;
  const std::vector<unsigned> order = block_order(count);
  const std::size_t window = std::min<std::size_t>(count, simulation().resident_blocks);
  Residents residents(window);
  std::uint32_t random = simulation().seed * 2891336453u + count;
  unsigned next = 0;
  std::size_t turn = 0;
  while (next < count || !residents.empty()) {
    const std::size_t open = std::min(window, residents.size() + (next < count ? 1 : 0));
    if (simulation().order == ThreadOrder::random && open > 1) {
      random = random * 1664525u + 1013904223u;
      turn = (random >> 8) % open;
    }
    if (turn >= open) turn = 0;
    if (turn == residents.size()) residents.add().start(grid, order[next++], static_cast<unsigned>(turn), window > 1);
    Block& block = residents[turn];
    if (!block.resume()) {
      ++turn;
      continue;
    }
    static_bytes = std::max(static_bytes, block.shared().static_bytes());
    if (!block.failure().text.empty()) return block.failure();
    // The next block takes this slot, so that blocks that never end do not touch the memory of other blocks.
    if (next < count) {
      block.start(grid, order[next++], block.slot(), window > 1);
    } else {
      residents.remove(turn);
    }
  }
  return {};
}

}  // namespace dp::simt
