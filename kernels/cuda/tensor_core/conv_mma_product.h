// Tiled kernel of forward and data gradient on tensor cores, for every convolution that fits.
#pragma once

#include "kernels/cuda/gemm/gemm_end.h"
#include "kernels/cuda/tensor_core/conv_mma_choice.h"
#include "kernels/cuda/tensor_core/conv_mma_chunk.h"
#include "kernels/cuda/tensor_core/conv_mma_operands.h"

namespace dp::kernels::cuda {

// Row pitch of results in shared memory, in words of two results. Four extra words spread eight rows over all banks.
template <typename Tile>
inline constexpr int kStagedPitch = Tile::kCols / 2 + 4;

// Rounds the sums to results in shared memory, then writes them to `out` in whole chunks.
template <typename Low, typename Tile>
__device__ __forceinline__ void store_results(unsigned* staged, const MmaSums<Tile>& sums, const float* bias,
                                              uint4* out, const MmaProduct& product, const Windows& windows,
                                              int first_row, int first_chunk) {
  constexpr int kPitch = kStagedPitch<Tile>, kRowChunks = Tile::kCols / kChunk;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const Ending ending{1, product.bias, product.relu, false, false};
#pragma unroll
  for (int j = 0; j < Tile::kAcross; ++j) {
    const int col = warp_col<Tile>() + j * 8 + lane % 4 * 2, channel = first_chunk * kChunk + col;
    float biases[2] = {0, 0};
    if (product.bias && channel < product.out_chunks * kChunk) biases[0] = bias[channel], biases[1] = bias[channel + 1];
#pragma unroll
    for (int i = 0; i < Tile::kDown; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        staged[(warp_row<Tile>() + i * 16 + half * 8 + lane / 4) * kPitch + col / 2] = rounded_pair<Low>(
            ended(sums[i][j][half * 2], biases, 0, ending), ended(sums[i][j][half * 2 + 1], biases, 1, ending));
  }
  __syncthreads();
#pragma unroll 1
  for (int at = thread; at < Tile::kRows * kRowChunks; at += Tile::kThreads) {
    const int row = at / kRowChunks, chunk = at % kRowChunks, m = first_row + row;
    if (m >= windows.cells || first_chunk + chunk >= product.out_chunks) continue;
    const int cell = product.dense ? m : windows.out_cell(m);
    out[static_cast<long long>(cell) * product.out_chunks + first_chunk + chunk] =
        *reinterpret_cast<const uint4*>(staged + row * kPitch + chunk * 4);
  }
}

// blockIdx: tile of cells, tile of channels of the result, part.
template <typename Low, typename Tile, bool data>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    conv_mma_kernel(const uint4* image, const uint4* weights, const float* bias, uint4* out, MmaProduct product) {
  DP_DYNAMIC_SHARED(uint4, ring);
  DP_SHARED(Tap, taps, [kTapPlaces]);
  const Windows& windows = product.parts[blockIdx.z];
  const int first_row = static_cast<int>(blockIdx.x) * Tile::kRows;
  const int first_chunk = static_cast<int>(blockIdx.y) * (Tile::kCols / kChunk);
  if (first_row >= windows.cells) return;  // a part smaller than the largest: nothing to do for the whole block
  if (threadIdx.x < kTapPlaces) taps[threadIdx.x] = windows.tap(static_cast<int>(threadIdx.x));
  __syncthreads();

  const int depth = windows.taps() * windows.chunks;
  const int steps = (depth * kChunk + Tile::kStep - 1) / Tile::kStep;
  const WindowRows<Tile> rows(image, windows, taps, first_row);
  MmaSums<Tile> sums = {};
  if constexpr (data) {
    const WeightColumns<Tile> cols(weights, product, windows, taps, first_chunk);
    multiply<Low, Tile, true, false>(
        ring, steps,
        [&](uint4* stage, int step) {
          rows.load(stage, step);
          cols.load(stage + Tile::kChunksA, step);
        },
        sums);
  } else {
    const DenseRows<Tile> cols(weights, product.out_chunks * kChunk, depth, first_chunk * kChunk);
    multiply<Low, Tile, true, true>(
        ring, steps,
        [&](uint4* stage, int step) {
          rows.load(stage, step);
          cols.load(stage + Tile::kChunksA, step);
        },
        sums);
  }
  store_results<Low, Tile>(reinterpret_cast<unsigned*>(ring), sums, bias, out, product, windows, first_row,
                           first_chunk);
}

// Grid of kernels with blockIdx: tile of cells, tile of channels of the result, part.
template <typename Tile>
dim3 grid_of(const MmaProduct& product) {
  int cells = 0;
  for (int part = 0; part < product.count; ++part) cells = std::max(cells, product.parts[part].cells);
  return dim3(blocks_for(cells, Tile::kRows), blocks_for(product.out_chunks, Tile::kCols / kChunk), product.count);
}

template <typename Low, typename Tile, bool data>
void enqueue_mma_tiles(cudaStream_t stream, const MmaProduct& product, const void* image, const void* weights,
                       const void* bias, void* out) {
  const dim3 grid = grid_of<Tile>(product);
  if (grid.x == 0) return;
  launch({data ? "conv_mma_data" : "conv_mma_forward", grid, dim3(Tile::kThreads), stream, Tile::kSharedBytes},
         conv_mma_kernel<Low, Tile, data>, static_cast<const uint4*>(image), static_cast<const uint4*>(weights),
         static_cast<const float*>(bias), static_cast<uint4*>(out), product);
}

}  // namespace dp::kernels::cuda
