#include "kernels/conv/cuda_mma_choice.h"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "kernels/tuning/candidates.h"

namespace dp::kernels::cuda {
namespace {

// Cost model of an H200, like that in linear/cuda_gemm_choice.cpp. The unit is one multiply-add of one multiprocessor's
// tensor cores with mma.sync. The assumed rate is 1.9e12 per second, about 60 % of wgmma. Nothing was measured.
constexpr std::int64_t kMultiprocessors = 132;
constexpr std::int64_t kByte = 45;              // a byte read from the L2 cache, at 5.5e12 bytes per second
constexpr std::int64_t kStepsToStart = 6;       // per block, before its first product and after its last
constexpr std::int64_t kPartial = 4;            // one float written and read
constexpr std::int64_t kSplitCost = 3'800'000;  // 2 us
constexpr std::int64_t kLeastDepth = 256;       // minimum elements of k per split
constexpr std::int64_t kMostSplits = 512;
constexpr std::int64_t kMostPartials = 1 << 24;  // floats of workspace

constexpr std::int64_t kResidentStart = 5'200'000;  // reading 115 KB from the L2 cache

struct Tile {
  MmaTileKind kind;
  const char* name;
  std::int64_t rows, cols, step;
  std::int64_t warps, blocks;  // warps per block; resident blocks per multiprocessor
};
constexpr Tile kTiles[] = {{MmaTileKind::large, "128x128", 128, 128, 32, 4, 2},
                           {MmaTileKind::tall, "256x64", 256, 64, 32, 4, 2},
                           {MmaTileKind::middle, "128x64", 128, 64, 64, 4, 3},
                           {MmaTileKind::small, "64x64", 64, 64, 64, 4, 4}};
// Resident kernels without and with splits of k. The kernel with splits has nine warps, but counts as six because they
// load the four schedulers unevenly. Traffic is ignored: each cell is read only once.
constexpr Tile kWarpgroup{MmaTileKind::warpgroup, "warpgroup", 576, 64, 128, 12, 1};
constexpr Tile kResidentWhole{MmaTileKind::resident, "resident", 256, 64, 64, 8, 1},
    kResidentCut{MmaTileKind::resident, "resident", 576, 64, 64, 6, 1};

// Per cent of peak speed with `warps` warps on a multiprocessor.
std::int64_t busy(std::int64_t warps) { return warps >= 12 ? 100 : warps >= 8 ? 90 : warps >= 6 ? 75 : 60; }

std::int64_t over(std::int64_t count, std::int64_t size) { return (count + size - 1) / size; }

std::int64_t cost(const GemmShape& shape, const Tile& tile, std::int64_t splits) {
  const bool warpgroup = tile.kind == MmaTileKind::warpgroup,
             resident = warpgroup || tile.kind == MmaTileKind::resident;
  const std::int64_t blocks = over(shape.rows, tile.rows) * over(shape.cols, tile.cols) * shape.parts * splits;
  const std::int64_t steps = over(over(shape.depth, tile.step), splits) + (resident ? 0 : kStepsToStart);
  const std::int64_t each = over(blocks, kMultiprocessors);
  const std::int64_t rate = warpgroup ? 2 : 1;  // relative to mma.sync
  const std::int64_t arithmetic = tile.rows * tile.cols * 100 / busy(std::min(each, tile.blocks) * tile.warps) / rate;
  const std::int64_t traffic = resident ? 0 : (tile.rows + tile.cols) * 2 * kByte;
  const std::int64_t product =
      each * steps * tile.step * std::max(arithmetic, traffic) + (resident ? kResidentStart : 0);
  return product + (splits > 1 ? kSplitCost + shape.results * splits * kPartial : 0);
}

std::int64_t most_splits(const GemmShape& shape, bool splittable) {
  if (!splittable) return 1;
  return std::clamp<std::int64_t>(std::min(shape.depth / kLeastDepth, kMostPartials / shape.results), 1, kMostSplits);
}

std::int64_t best_splits(const GemmShape& shape, const Tile& tile, std::int64_t most) {
  std::int64_t best = 1;
  for (std::int64_t splits = 2; splits <= most; ++splits)
    if (cost(shape, tile, splits) < cost(shape, tile, best)) best = splits;
  return best;
}

// The best number of splits, half of it and twice it.
std::set<std::int64_t> likely_splits(const GemmShape& shape, const Tile& tile, std::int64_t most) {
  const std::int64_t best = best_splits(shape, tile, most);
  return {best, std::max<std::int64_t>(best / 2, 1), std::min(2 * best, most)};
}

}  // namespace

std::vector<MmaChoice> mma_choices(const GemmShape& shape, const MmaLimits& limits, std::size_t most) {
  if (shape.results == 0) return {{}};
  const std::int64_t limit = most_splits(shape, limits.splittable);
  std::vector<Tile> tiles(std::begin(kTiles), std::end(kTiles));
  if (limits.resident) tiles.push_back(limits.splittable ? kResidentCut : kResidentWhole);
  std::vector<std::pair<std::int64_t, MmaChoice>> found;
  for (const Tile& tile : tiles)
    for (const std::int64_t splits : likely_splits(shape, tile, limit))
      found.push_back({cost(shape, tile, splits), {tile.kind, static_cast<int>(splits)}});
  std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<MmaChoice> choices;
  for (const auto& [cost, choice] : found)
    if (choices.size() < most) choices.push_back(choice);
  std::vector<MmaChoice> with_wgmma;
  if (limits.warpgroup) {
    const std::int64_t best = best_splits(shape, kWarpgroup, limit);
    with_wgmma.push_back({MmaTileKind::warpgroup, static_cast<int>(best)});
    for (const std::int64_t splits : likely_splits(shape, kWarpgroup, limit))
      if (splits != best) with_wgmma.push_back({MmaTileKind::warpgroup, static_cast<int>(splits)});
  }
  if (limits.wgmma) with_wgmma.push_back({shape.cols > 64 ? MmaTileKind::wgmma_wide : MmaTileKind::wgmma_narrow});
  choices.insert(limits.wgmma_first ? choices.begin() : choices.end(), with_wgmma.begin(), with_wgmma.end());
  return choices;
}

const char* to_string(MmaTileKind tile) {
  switch (tile) {
    case MmaTileKind::resident: return kResidentWhole.name;
    case MmaTileKind::warpgroup: return kWarpgroup.name;
    case MmaTileKind::wgmma_wide: return "256x128";
    case MmaTileKind::wgmma_narrow: return "256x64";
    default: return kTiles[static_cast<std::size_t>(tile)].name;
  }
}

std::string_view family_of(MmaTileKind tile) {
  switch (tile) {
    case MmaTileKind::resident: return family::resident;
    case MmaTileKind::warpgroup: return family::warpgroup;
    case MmaTileKind::wgmma_wide:
    case MmaTileKind::wgmma_narrow: return family::wgmma;
    default: return family::mma;
  }
}

bool is_wgmma(MmaTileKind tile) { return tile == MmaTileKind::wgmma_wide || tile == MmaTileKind::wgmma_narrow; }

}  // namespace dp::kernels::cuda
