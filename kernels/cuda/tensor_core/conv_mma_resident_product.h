// Forward and data gradient of an image with 64 channels. A block keeps all weights in
// shared memory, and multiplies one run of 256 cells while it copies the next.
#pragma once

#include "kernels/cuda/tensor_core/conv_mma_product.h"
#include "kernels/cuda/tensor_core/conv_mma_resident.h"

namespace dp::kernels::cuda {

// Tile of a run. The resident kernels do not use its step and stages.
using ResidentTile = MmaTileSize<256, 64, 64, 32, 64, 2, 1>;

// Shared memory in rows of kRowChunks chunks: weights, two runs, one row of zeros.
struct ResidentRows {
  static constexpr int kWeights = kResidentTaps * kResidentChannels;
  static constexpr int kResults = ResidentTile::kRows * (ResidentTile::kCols + kChunk) / kResidentChannels;
  int run, zeros;

  __host__ __device__ explicit ResidentRows(int width) {
    const int cells = ResidentTile::kRows + 2 * reach_of(width);
    run = ((cells > kResults ? cells : kResults) + 7) / 8 * 8;
    zeros = kWeights + 2 * run;
  }
  __host__ __device__ std::size_t bytes() const { return static_cast<std::size_t>(zeros + 1) * kRowChunks * 16; }
};

// Copies the weights of 64 channels of the result, starting at chunk `first`. Layout for a forward:
// [channel of y][tap, channel of x]; for a data gradient: [tap, channel of y][channel of x].
template <bool data>
__device__ void load_weights(uint4* shared, const uint4* weights, const MmaProduct& product, int first) {
  for (int at = static_cast<int>(threadIdx.x); at < ResidentRows::kWeights * kRowChunks; at += ResidentTile::kThreads) {
    if constexpr (data) {
      const int row = at / kRowChunks, chunk = at % kRowChunks;
      const int tap = row / kResidentChannels, channel = row % kResidentChannels;
      const bool inside = first + chunk < product.out_chunks;
      ptx::cp_async16(shared + swizzled<kRowChunks>(row, chunk),
                      weights + (inside ? (channel * kResidentTaps + tap) * product.out_chunks + first + chunk : 0),
                      inside);
    } else {
      constexpr int kPitch = kResidentTaps * kRowChunks;
      const int row = at / kPitch, chunk = at % kPitch, channel = first * kChunk + row;
      const bool inside = channel < product.out_chunks * kChunk;
      ptx::cp_async16(shared + swizzled<kPitch>(row, chunk), weights + (inside ? channel * kPitch + chunk : 0), inside);
    }
  }
}

// blockIdx: block among those that share the runs, tile of channels of the result. The image has 64 channels.
// end(staged, sums, run) receives the sums of a run. It may overwrite `staged`, the run's rows of shared memory.
// landed(rows, run) may change the chunks of a run that this thread copied (every kThreads-th)
// before other threads read them. For a block's first run it is called before the multiplication.
// Later runs are changed during the multiplication of the previous run, by the two halves of the
// block at different taps, so that a scheduler still has a warp that multiplies.
template <typename Low, bool data, typename End, typename Landed = AsTheyLie>
__device__ __forceinline__ void multiply_runs(uint4* shared, const uint4* image, const uint4* weights,
                                              const MmaProduct& product, const End& end, const Landed& landed = {}) {
  using Tile = ResidentTile;
  const Windows& windows = product.parts[0];
  const int reach = reach_of(windows.width), first_chunk = static_cast<int>(blockIdx.y) * kRowChunks;
  const ResidentRows rows(windows.width);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const int runs = (windows.cells + Tile::kRows - 1) / Tile::kRows, stride = static_cast<int>(gridDim.x);
  constexpr bool kChanges = !std::is_same_v<Landed, AsTheyLie>;
  const auto load_run = [&](int run, int first_row) {
    for (int at = thread; at < (Tile::kRows + 2 * reach) * kRowChunks; at += Tile::kThreads) {
      const int row = at / kRowChunks, cell = run * Tile::kRows - reach + row;
      const bool inside = cell >= 0 && cell < windows.cells;
      ptx::cp_async16(shared + swizzled<kRowChunks>(first_row + row, at % kRowChunks),
                      image + (inside ? static_cast<long long>(cell) * kRowChunks + at % kRowChunks : 0), inside);
    }
  };

  if (thread < kRowChunks) shared[rows.zeros * kRowChunks + thread] = make_uint4(0, 0, 0, 0);
  load_weights<data>(shared, weights, product, first_chunk);
  int run = static_cast<int>(blockIdx.x), here = ResidentRows::kWeights, next = here + rows.run;
  if (run < runs) load_run(run, here);
  ptx::cp_async_commit();
#pragma unroll 1
  for (; run < runs; run += stride) {
    if (run + stride < runs) load_run(run + stride, next);
    ptx::cp_async_commit();
    ptx::cp_async_wait<1>();
    if constexpr (kChanges)
      if (run == static_cast<int>(blockIdx.x)) landed(shared + here * kRowChunks, run);
    __syncthreads();

    unsigned inside[Tile::kDown];
#pragma unroll
    for (int i = 0; i < Tile::kDown; ++i) {
      const int m = run * Tile::kRows + warp_row<Tile>() + i * 16 + lane % 16;
      inside[i] = m < windows.cells ? windows.cell(m).taps : 0;
    }
    __syncwarp();
    MmaSums<Tile> sums = {};
#pragma unroll 1
    for (int tap = 0; tap < kResidentTaps; ++tap) {
      if constexpr (kChanges)
        if (tap == 5 + thread / (Tile::kThreads / 2) * 2 && run + stride < runs) {
          ptx::cp_async_wait<0>();
          landed(shared + next * kRowChunks, run + stride);
          __syncwarp();  // lanes may have diverged in landed(); ldmatrix needs the whole warp
        }
      const int offset = here + reach + tap_offset(windows, tap);
      int at[Tile::kDown];
#pragma unroll
      for (int i = 0; i < Tile::kDown; ++i)
        at[i] = tap_row(warp_row<Tile>() + i * 16 + lane % 16, inside[i], tap, offset, rows.zeros);
#pragma unroll
      for (int k = 0; k < kResidentChannels; k += 16) {
        unsigned a[Tile::kDown][4], b[Tile::kAcross / 2][4];
#pragma unroll
        for (int i = 0; i < Tile::kDown; ++i)
          ptx::ldmatrix_x4(a[i], shared + swizzled<kRowChunks>(at[i], k / kChunk + lane / 16));
#pragma unroll
        for (int j = 0; j < Tile::kAcross / 2; ++j)
          MmaOperand<!data, kResidentChannels, kResidentTaps * kResidentChannels>::take_b(
              shared, warp_col<Tile>() + j * 16, tap * kResidentChannels + k, b[j]);
        multiply_fragments<Low, Tile>(a, b, sums);
      }
    }
    __syncthreads();  // the run has been read by all threads; results overwrite it
    end(reinterpret_cast<unsigned*>(shared + here * kRowChunks), sums, run);
    __syncthreads();
    const int free = here;
    here = next, next = free;
  }
  ptx::cp_async_wait<0>();
}

template <typename Low, bool data>
__global__ void __launch_bounds__(ResidentTile::kThreads, ResidentTile::kBlocks)
    conv_mma_resident_kernel(const uint4* image, const uint4* weights, const float* bias, uint4* out,
                             MmaProduct product) {
  DP_DYNAMIC_SHARED(uint4, shared);
  multiply_runs<Low, data>(
      shared, image, weights, product, [&](unsigned* staged, const MmaSums<ResidentTile>& sums, int run) {
        store_results<Low, ResidentTile>(staged, sums, bias, out, product, product.parts[0], run * ResidentTile::kRows,
                                         static_cast<int>(blockIdx.y) * kRowChunks);
      });
}

// Grid: blocks that share the runs, tiles of channels of the result.
inline dim3 resident_grid(const MmaProduct& product, int multiprocessors) {
  const unsigned tiles = blocks_for(product.out_chunks, kRowChunks),
                 runs = blocks_for(product.parts[0].cells, ResidentTile::kRows);
  return dim3(std::clamp(static_cast<unsigned>(multiprocessors) / tiles, 1u, runs), tiles);
}

template <typename Low, bool data>
void enqueue_resident(cudaStream_t stream, const MmaProduct& product, int multiprocessors, const void* image,
                      const void* weights, const void* bias, void* out) {
  launch({data ? "conv_mma_resident_data" : "conv_mma_resident_forward", resident_grid(product, multiprocessors),
          dim3(ResidentTile::kThreads), stream, ResidentRows(product.parts[0].width).bytes()},
         conv_mma_resident_kernel<Low, data>, static_cast<const uint4*>(image), static_cast<const uint4*>(weights),
         static_cast<const float*>(bias), static_cast<uint4*>(out), product);
}

}  // namespace dp::kernels::cuda
