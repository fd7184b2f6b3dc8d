// Tiled kernel of a weight gradient on tensor cores, for every convolution that fits.
#pragma once

#include "kernels/conv/cuda_mma_tile.h"

namespace dp::kernels::cuda {

// blockIdx: tile of (tap, channel of x), tile of channels of y, range of cells. out: dw,
// or partial sums of the size of dw for each range. Layout: [channel of y][tap, channel
// of x]. landed(rows, stage, step): as in multiply(); `rows` are the windows of x.
template <typename Low, typename Tile, typename Landed>
__device__ __forceinline__ void multiply_windows(uint4* ring, const uint4* x, const uint4* dy, float* out,
                                                 const MmaWeights& weights, const Landed& landed) {
  DP_SHARED(Cell, cells, [Tile::kStages][Tile::kStep]);
  const Windows& windows = weights.windows;
  const int all_steps = (windows.cells + Tile::kStep - 1) / Tile::kStep;
  const int each = (all_steps + weights.splits - 1) / weights.splits, split = static_cast<int>(blockIdx.z);
  const int begin = split * each, steps = min(each, all_steps - begin);
  const int first_row = static_cast<int>(blockIdx.x) * Tile::kRows;
  const int first_col = static_cast<int>(blockIdx.y) * Tile::kCols;

  const WindowColumns<Tile> rows(x, windows, cells, first_row / kChunk, begin);
  const CellColumns<Tile> cols(dy, windows.cells, weights.out_chunks, first_col / kChunk, begin);
  for (int step = 0; step < Tile::kStages; ++step) rows.find(step);
  __syncthreads();
  MmaSums<Tile> sums = {};
  multiply<Low, Tile, false, false>(
      ring, steps,
      [&](uint4* stage, int step) {
        rows.load(stage, step);
        cols.load(stage + Tile::kChunksA, step);
        if (step + 1 >= Tile::kStages) rows.find(step + 1);  // found above for earlier steps
      },
      sums, [&](uint4* stage, int step) { landed(rows, stage, step); });

  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int all_rows = windows.taps() * windows.chunks * kChunk, all_cols = weights.out_chunks * kChunk;
  float* const results = out + static_cast<long long>(split) * all_rows * all_cols;
#pragma unroll
  for (int i = 0; i < Tile::kDown; ++i)
#pragma unroll
    for (int j = 0; j < Tile::kAcross; ++j)
#pragma unroll
      for (int at = 0; at < 4; ++at) {
        const int row = first_row + warp_row<Tile>() + i * 16 + at / 2 * 8 + lane / 4;
        const int col = first_col + warp_col<Tile>() + j * 8 + lane % 4 * 2 + at % 2;
        if (row < all_rows && col < all_cols) results[static_cast<long long>(col) * all_rows + row] = sums[i][j][at];
      }
}

template <typename Tile>
dim3 weights_grid(const MmaWeights& weights) {
  return dim3(blocks_for(weights.windows.taps() * weights.windows.chunks, Tile::kRows / kChunk),
              blocks_for(weights.out_chunks, Tile::kCols / kChunk), static_cast<unsigned>(weights.splits));
}

}  // namespace dp::kernels::cuda
