#include "kernels/linear/cuda_gemm_choice.h"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

namespace dp::kernels::cuda {
namespace {

// Cost model of an H200. The unit is one multiply-add of one multiprocessor, which does 2.5e11 per second. Other
// devices use the same model, so results are the same; only speed may suffer.
constexpr std::int64_t kMultiprocessors = 132;
constexpr std::int64_t kStepsToStart = 4;     // per block, before its first product and after its last
constexpr std::int64_t kStep = 16;            // elements of k per step, as in cuda_gemm_tile.h
constexpr std::int64_t kSplitCost = 500'000;  // 2 us: extra cost of a split
constexpr std::int64_t kLeastDepth = 128;     // minimum elements of k per split
constexpr std::int64_t kMostSplits = 512;
constexpr std::int64_t kMostPartials = 1 << 24;  // floats of workspace

struct Tile {
  TileKind kind;
  const char* name;
  std::int64_t rows, cols;
  std::int64_t warps, blocks;  // warps per block; resident blocks per multiprocessor
  std::int64_t speed;          // % of peak arithmetic; estimated from loads of shared memory, not measured
};
constexpr Tile kTiles[] = {{TileKind::wide, "128x128", 128, 128, 8, 2, 85},
                           {TileKind::tall, "128x64", 128, 64, 4, 3, 85},
                           {TileKind::square, "64x64", 64, 64, 4, 4, 70},
                           {TileKind::narrow, "128x32", 128, 32, 4, 4, 70},
                           {TileKind::small, "32x32", 32, 32, 2, 8, 50}};

// Per cent of a tile's speed with `warps` warps on a multiprocessor. With few warps it waits for memory. Not measured.
std::int64_t busy(std::int64_t warps) { return warps >= 12 ? 100 : warps >= 8 ? 90 : warps >= 4 ? 65 : 40; }

std::int64_t over(std::int64_t count, std::int64_t size) { return (count + size - 1) / size; }

std::int64_t cost(const GemmShape& shape, const Tile& tile, std::int64_t splits) {
  const std::int64_t blocks = over(shape.rows, tile.rows) * over(shape.cols, tile.cols) * shape.parts * splits;
  const std::int64_t steps = over(over(shape.depth, kStep), splits) + kStepsToStart;
  const std::int64_t each = over(blocks, kMultiprocessors);
  const std::int64_t speed = tile.speed * busy(std::min(each, tile.blocks) * tile.warps);
  const std::int64_t product = each * tile.rows * tile.cols * steps * kStep * 10'000 / speed;
  // Writing and reading one float costs as much as half a multiply-add of one multiprocessor.
  return product + (splits > 1 ? kSplitCost + shape.results * splits / 2 : 0);
}

std::int64_t most_splits(const GemmShape& shape) {
  return std::clamp<std::int64_t>(std::min(shape.depth / kLeastDepth, kMostPartials / shape.results), 1, kMostSplits);
}

// The best number of splits for a tile, and its cost.
std::pair<std::int64_t, GemmChoice> best_with(const GemmShape& shape, const Tile& tile) {
  std::pair<std::int64_t, GemmChoice> best{std::numeric_limits<std::int64_t>::max(), {}};
  for (std::int64_t splits = 1; splits <= most_splits(shape); ++splits)
    if (const std::int64_t c = cost(shape, tile, splits); c < best.first)
      best = {c, {tile.kind, static_cast<int>(splits)}};
  return best;
}

}  // namespace

GemmChoice choose(const GemmShape& shape) {
  if (shape.results == 0) return {};
  std::pair<std::int64_t, GemmChoice> best{std::numeric_limits<std::int64_t>::max(), {}};
  for (const Tile& tile : kTiles)
    if (const auto own = best_with(shape, tile); own.first < best.first) best = own;
  return best.second;
}

// Candidates: for each tile the best number of splits, half of it and twice that number.
std::vector<GemmChoice> alternatives(const GemmShape& shape, std::size_t most) {
  if (shape.results == 0) return {};
  const GemmChoice chosen = choose(shape);
  std::vector<std::pair<std::int64_t, GemmChoice>> found;
  for (const Tile& tile : kTiles) {
    const std::int64_t best = best_with(shape, tile).second.splits;
    for (const std::int64_t splits :
         std::set{best, std::max<std::int64_t>(best / 2, 1), std::min(2 * best, most_splits(shape))})
      if (tile.kind != chosen.tile || splits != chosen.splits)
        found.push_back({cost(shape, tile, splits), {tile.kind, static_cast<int>(splits)}});
  }
  std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<GemmChoice> choices;
  for (const auto& [cost, choice] : found)
    if (choices.size() < most) choices.push_back(choice);
  return choices;
}

const char* to_string(TileKind tile) { return kTiles[static_cast<std::size_t>(tile)].name; }

std::string gemm_name(const GemmChoice& choice) {
  const std::string splits = choice.splits == 1 ? "" : " in " + std::to_string(choice.splits) + " ranges";
  return std::string("own:gemm ") + to_string(choice.tile) + splits;
}

}  // namespace dp::kernels::cuda
