#include "simt/emulator/grid.h"

#include <memory>
#include <mutex>
#include <numeric>
#include <utility>
#include <vector>

#include "simt/emulator/block.h"
#include "simt/runtime/quiet_lock.h"
#include "simt/simulation.h"

namespace dp::simt {
namespace {

// Blocks are kept for the next launch: their stacks are warm. At most as many as launches have run at once.
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
  if (grid.shared_bytes > simulation().shared_memory_per_block)
    return std::to_string(grid.shared_bytes) + " bytes of dynamic shared memory";
  return {};
}

Failure run_grid(const Grid& grid) {
  auto block = pool().take();
  block_shape = grid.block;
  grid_shape = grid.grid;
  Failure failure;
  for (const unsigned number : block_order(grid.grid.x * grid.grid.y * grid.grid.z)) {
    failure = block->run(grid, number);
    if (!failure.text.empty()) break;
  }
  pool().give_back(std::move(block));
  return failure;
}

}  // namespace dp::simt
