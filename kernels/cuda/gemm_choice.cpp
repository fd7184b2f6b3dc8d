#include "kernels/cuda/gemm_choice.h"

#include <algorithm>

namespace dp::kernels::cuda {
namespace {

constexpr std::int64_t kLeastDepth = 256;        // of a split: its results are written and read once more
constexpr std::int64_t kMostPartials = 1 << 24;  // floats

std::int64_t tiles(std::int64_t count, std::int64_t size) { return (count + size - 1) / size; }

struct Candidate {
  TileKind kind;
  std::int64_t rows, cols;
  std::int64_t blocks;  // that fill a large device
};
constexpr Candidate kCandidates[] = {
    {TileKind::wide, 128, 128, 256}, {TileKind::tall, 128, 64, 384}, {TileKind::small, 32, 32, 1024}};

}  // namespace

GemmChoice choose(const GemmShape& shape) {
  const std::int64_t by_memory = shape.results > 0 ? kMostPartials / shape.results : 1;
  const std::int64_t most = std::max<std::int64_t>(1, std::min(shape.depth / kLeastDepth, by_memory));
  for (const Candidate& c : kCandidates) {
    const std::int64_t blocks = tiles(shape.rows, c.rows) * tiles(shape.cols, c.cols) * shape.parts;
    const std::int64_t splits = std::clamp<std::int64_t>(blocks > 0 ? c.blocks / blocks : 1, 1, most);
    const bool filled = 2 * shape.cols > c.cols && 2 * shape.rows > c.rows && 2 * blocks * splits >= c.blocks;
    if (filled || c.kind == TileKind::small) return {c.kind, static_cast<int>(splits)};
  }
  return {};
}

const char* to_string(TileKind tile) {
  return tile == TileKind::wide ? "128x128" : tile == TileKind::tall ? "128x64" : "32x32";
}

}  // namespace dp::kernels::cuda
