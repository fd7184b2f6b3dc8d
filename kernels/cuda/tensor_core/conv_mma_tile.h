// One tile of a product on tensor cores. Asynchronous copies load the operands to a ring of stages
// in shared memory; ldmatrix loads them to registers; each warp multiplies its part of the tile.
#pragma once

#include "device_code.h"
#include "kernels/cuda/tensor_core/conv_mma_windows.h"
#include "kernels/low_float.h"
#include "ptx.h"

namespace dp::kernels::cuda {

template <int rows, int cols, int warp_rows, int warp_cols, int step, int stages, int blocks>
struct MmaTileSize {
  static constexpr int kRows = rows, kCols = cols, kWarpRows = warp_rows, kWarpCols = warp_cols;
  static constexpr int kStep = step, kStages = stages;  // elements of k; stages in shared memory
  static constexpr int kWarpsDown = rows / warp_rows, kWarpsAcross = cols / warp_cols;
  static constexpr int kThreads = kWarpsDown * kWarpsAcross * 32;
  static constexpr int kBlocks = blocks;                                 // per multiprocessor, at least
  static constexpr int kDown = warp_rows / 16, kAcross = warp_cols / 8;  // mma products per warp
  static constexpr int kChunksA = rows * step / kChunk, kChunksB = cols * step / kChunk;
  static constexpr int kStageChunks = kChunksA + kChunksB;
  static constexpr std::size_t kSharedBytes = static_cast<std::size_t>(stages) * kStageChunks * 16;
};
using LargeMmaTile = MmaTileSize<128, 128, 64, 64, 32, 4, 2>;
using TallMmaTile = MmaTileSize<256, 64, 64, 64, 32, 4, 2>;
using MiddleMmaTile = MmaTileSize<128, 64, 64, 32, 64, 3, 3>;
using SmallMmaTile = MmaTileSize<64, 64, 32, 32, 64, 3, 4>;

template <typename Tile>
using MmaSums = float[Tile::kDown][Tile::kAcross][4];

// Index of a chunk in a tile with `pitch` chunks per row. The swizzle avoids bank conflicts: equal chunks of eight
// successive rows (read by ldmatrix) and eight neighbouring chunks (written by copies) each cover all 32 banks once.
template <int pitch>
__device__ __forceinline__ int swizzled(int row, int chunk) {
  static_assert(pitch == 4 || pitch % 8 == 0);
  return row * pitch + (chunk ^ (pitch == 4 ? row / 2 % 4 : row % 8));
}

template <typename Low>
__device__ __forceinline__ void mma(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  if constexpr (std::is_same_v<Low, BFloat16>)
    ptx::mma_m16n8k16_bf16(d, a, b);
  else
    ptx::mma_m16n8k16_f16(d, a, b);
}

// One operand of a tile; `lines`: rows of a, columns of b. along: stored as [line][k]; otherwise as [k][line].
template <bool along, int lines, int step>
struct MmaOperand {
  static constexpr int kPitch = (along ? step : lines) / kChunk;

  // Loads 16 lines x 16 k's as the first operand of mma.
  __device__ static void take_a(const uint4* tile, int line, int k, unsigned (&fragments)[4]) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if constexpr (along)
      ptx::ldmatrix_x4(fragments, tile + swizzled<kPitch>(line + lane % 16, k / kChunk + lane / 16));
    else
      ptx::ldmatrix_x4_trans(fragments,
                             tile + swizzled<kPitch>(k + lane % 8 + lane / 16 * 8, line / kChunk + lane / 8 % 2));
  }
  // Loads 16 lines x 16 k's as two second operands of mma, eight lines each: fragments 0 and 1, fragments 2 and 3.
  __device__ static void take_b(const uint4* tile, int line, int k, unsigned (&fragments)[4]) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if constexpr (along)
      ptx::ldmatrix_x4(fragments, tile + swizzled<kPitch>(line + lane % 8 + lane / 16 * 8, k / kChunk + lane / 8 % 2));
    else
      ptx::ldmatrix_x4_trans(fragments,
                             tile + swizzled<kPitch>(k + lane % 8 + lane / 8 % 2 * 8, line / kChunk + lane / 16));
  }
};

template <typename Tile>
__device__ __forceinline__ int warp_row() {
  return static_cast<int>(threadIdx.x) / 32 / Tile::kWarpsAcross * Tile::kWarpRows;
}
template <typename Tile>
__device__ __forceinline__ int warp_col() {
  return static_cast<int>(threadIdx.x) / 32 % Tile::kWarpsAcross * Tile::kWarpCols;
}

// sums += a b, for the fragments of a warp.
template <typename Low, typename Tile>
__device__ __forceinline__ void multiply_fragments(const unsigned (&a)[Tile::kDown][4],
                                                   const unsigned (&b)[Tile::kAcross / 2][4], MmaSums<Tile>& sums) {
#pragma unroll
  for (int i = 0; i < Tile::kDown; ++i)
#pragma unroll
    for (int j = 0; j < Tile::kAcross; ++j) {
      const unsigned pair[2] = {b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]};
      mma<Low>(sums[i][j], a[i], pair);
    }
}

// Leaves the operands unchanged.
struct AsTheyLie {
  __device__ void operator()(uint4*, int) const {}
};

// Adds all steps to `sums`, in order of k. load(stage, step) issues the copies of a step: the
// chunks of a, then those of b. landed(stage, step) may change the chunks that this thread copied
// before other threads read them. On return no copy is in flight and no thread reads `ring`.
template <typename Low, typename Tile, bool along_a, bool along_b, typename Load, typename Landed = AsTheyLie>
__device__ __forceinline__ void multiply(uint4* ring, int steps, const Load& load, MmaSums<Tile>& sums,
                                         const Landed& landed = {}) {
  using A = MmaOperand<along_a, Tile::kRows, Tile::kStep>;
  using B = MmaOperand<along_b, Tile::kCols, Tile::kStep>;
  constexpr int kAhead = Tile::kStages - 1;
  for (int step = 0; step < kAhead; ++step) {
    if (step < steps) load(ring + step * Tile::kStageChunks, step);
    ptx::cp_async_commit();  // an empty group keeps the number of groups constant
  }
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    ptx::cp_async_wait<kAhead - 1>();
    landed(ring + step % Tile::kStages * Tile::kStageChunks, step);
    __syncthreads();  // the step's copies are visible to all; the previous step's stage is free
    if (step + kAhead < steps) load(ring + (step + kAhead) % Tile::kStages * Tile::kStageChunks, step + kAhead);
    ptx::cp_async_commit();
    const uint4* const a_tile = ring + step % Tile::kStages * Tile::kStageChunks;
    const uint4* const b_tile = a_tile + Tile::kChunksA;
#pragma unroll
    for (int k = 0; k < Tile::kStep; k += 16) {
      unsigned a[Tile::kDown][4], b[Tile::kAcross / 2][4];
#pragma unroll
      for (int i = 0; i < Tile::kDown; ++i) A::take_a(a_tile, warp_row<Tile>() + i * 16, k, a[i]);
#pragma unroll
      for (int j = 0; j < Tile::kAcross / 2; ++j) B::take_b(b_tile, warp_col<Tile>() + j * 16, k, b[j]);
      multiply_fragments<Low, Tile>(a, b, sums);
    }
  }
  ptx::cp_async_wait<0>();
  __syncthreads();
}

}  // namespace dp::kernels::cuda
