// Forward and data gradient by wgmma, for an image with 64 channels. A block keeps all weights in shared memory. While
// it multiplies one run of cells, it copies the next run and stores the results of the previous one.
#pragma once

#include "kernels/cuda/tensor_core/conv_mma_product.h"
#include "kernels/cuda/tensor_core/spaced_images.h"
#include "ptx.h"

namespace dp::kernels::cuda {

// Each warp has accumulators for 16 cells and 64 channels. The step and the stages are not used.
using WarpgroupTile = MmaTileSize<192, 64, 16, 64, 64, 3, 1>;

struct WarpgroupProduct {
  SpacedImages images;
  int out_chunks;  // of the result's channels
  int bias, relu;

  static constexpr int kStages = 3, kWeightRows = kResidentTaps * kResidentChannels;

  // Shared memory in rows of kRowChunks chunks. A stage holds a run and the cells around it.
  __host__ __device__ static int stage_rows(int width) {
    return (WarpgroupTile::kRows + 2 * spaced_reach(width) + 7) / 8 * 8;
  }
  __host__ __device__ static int rows(int width) { return kWeightRows + kStages * stage_rows(width); }
  // Includes the results of a run, and the bytes that align the first row.
  static std::size_t bytes(int width) {
    return static_cast<std::size_t>(rows(width)) * kRowChunks * 16 +
           WarpgroupTile::kRows * kStagedPitch<WarpgroupTile> * sizeof(unsigned) + kWgmmaAlignment;
  }
};
static_assert(std::has_unique_object_representations_v<WarpgroupProduct>);

// Copies the weights of 64 channels of the result, starting at chunk `first`. Layout: [tap, channel of y][channel of
// x]; each row has 64 channels.
template <bool data>
__device__ __forceinline__ void load_rows_of_weights(uint4* rows, const uint4* weights, int out_chunks, int first) {
  for (int at = static_cast<int>(threadIdx.x); at < WarpgroupProduct::kWeightRows * kRowChunks;
       at += WarpgroupTile::kThreads) {
    const int row = at / kRowChunks, chunk = at % kRowChunks;
    const int tap = row / kResidentChannels, channel = row % kResidentChannels + (data ? 0 : first * kChunk);
    const bool inside = data ? first + chunk < out_chunks : channel < out_chunks * kChunk;
    const int x_chunks = data ? out_chunks : kRowChunks;
    ptx::cp_async16(rows + swizzled<kRowChunks>(row, chunk),
                    weights + (inside ? (channel * kResidentTaps + tap) * x_chunks + (data ? first : 0) + chunk : 0),
                    inside);
  }
}

// Rounds a warp's accumulators and writes them to `out`. `staged`: 16 rows of shared memory, used by this warp only.
// first_cell: the warp's first cell in the spaced images.
template <typename Low>
__device__ __forceinline__ void store_rows(unsigned* staged, const float (&sums)[32], const float* bias, uint4* out,
                                           const WarpgroupProduct& product, int first_cell, int first_chunk) {
  using Tile = WarpgroupTile;
  constexpr int kPitch = kStagedPitch<Tile>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const Ending ending{1, product.bias != 0, product.relu != 0, false, false};
#pragma unroll
  for (int j = 0; j < Tile::kAcross; ++j) {
    const int col = j * 8 + lane % 4 * 2, channel = first_chunk * kChunk + col;
    float biases[2] = {0, 0};
    if (product.bias != 0 && channel < product.out_chunks * kChunk)
      biases[0] = bias[channel], biases[1] = bias[channel + 1];
#pragma unroll
    for (int half = 0; half < 2; ++half)
      staged[(half * 8 + lane / 4) * kPitch + col / 2] = rounded_pair<Low>(
          ended(sums[j * 4 + half * 2], biases, 0, ending), ended(sums[j * 4 + half * 2 + 1], biases, 1, ending));
  }
  __syncwarp();
  const int chunk = lane % kRowChunks;
#pragma unroll
  for (int row = lane / kRowChunks; row < Tile::kWarpRows; row += 32 / kRowChunks) {
    const int cell = product.images.cell(first_cell + row);
    if (cell >= 0 && first_chunk + chunk < product.out_chunks)
      out[static_cast<long long>(cell) * product.out_chunks + first_chunk + chunk] =
          *reinterpret_cast<const uint4*>(staged + row * kPitch + chunk * 4);
  }
  __syncwarp();  // the next run overwrites `staged`
}

// blockIdx.x: the runs are distributed cyclically over the blocks; every block has at least one. blockIdx.y: tile of
// channels of the result.
template <typename Low, bool data>
__global__ void __launch_bounds__(WarpgroupTile::kThreads, 1)
    conv_warpgroup_kernel(const uint4* image, const uint4* weights, const float* bias, uint4* out,
                          WarpgroupProduct product) {
  using P = WarpgroupProduct;
  using Tile = WarpgroupTile;
  DP_DYNAMIC_SHARED(uint4, shared);
  uint4* const rows = wgmma_aligned(shared);
  const SpacedImages& images = product.images;
  const int reach = spaced_reach(images.width), stage_chunks = P::stage_rows(images.width) * kRowChunks;
  uint4* const stages = rows + P::kWeightRows * kRowChunks;
  const int thread = static_cast<int>(threadIdx.x), first_chunk = static_cast<int>(blockIdx.y) * kRowChunks;
  auto* const staged = reinterpret_cast<unsigned*>(rows + P::rows(images.width) * kRowChunks) +
                       thread / 32 * Tile::kWarpRows * kStagedPitch<Tile>;
  const int runs = (images.all + Tile::kRows - 1) / Tile::kRows, stride = static_cast<int>(gridDim.x);

  // Run number `turn` of this block.
  const auto run_of = [&](int turn) { return static_cast<int>(blockIdx.x) + turn * stride; };
  const auto load = [&](int turn) {
    uint4* const stage = stages + turn % P::kStages * stage_chunks;
    const int first = run_of(turn) * Tile::kRows - reach, chunk = thread % kRowChunks;
#pragma unroll 1
    for (int row = thread / kRowChunks; row < Tile::kRows + 2 * reach; row += Tile::kThreads / kRowChunks) {
      const int cell = images.cell(first + row);
      ptx::cp_async16(stage + swizzled<kRowChunks>(row, chunk),
                      image + (cell >= 0 ? static_cast<long long>(cell) * kRowChunks + chunk : 0), cell >= 0);
    }
  };
  const auto start_products = [&](float(&sums)[32], int turn) {
#pragma unroll
    for (float& sum : sums) sum = 0;
    ptx::fence_accumulators(sums);
    const uint4* const own = stages + (turn % P::kStages * stage_chunks + thread / 128 * 64 * kRowChunks);
    ptx::wgmma_fence();
#pragma unroll
    for (int tap = 0; tap < kResidentTaps; ++tap) {
      const int line = tap / 3, column = tap - line * 3;
      const uint4* const cells =
          own + (data ? (2 - line) * images.pitch + 2 - column : line * images.pitch + column) * kRowChunks;
      const uint4* const tap_rows = rows + tap * kResidentChannels * kRowChunks;
#pragma unroll
      for (int k = 0; k < kResidentChannels; k += 16)
        ptx::wgmma_m64n64k16<Low, true, !data>(sums, ptx::wgmma_descriptor(cells + k / kChunk),
                                               ptx::wgmma_descriptor(tap_rows + (data ? k * kRowChunks : k / kChunk)));
    }
  };
  const auto store = [&](int turn, float(&sums)[32]) {
    ptx::fence_accumulators(sums);
    store_rows<Low>(staged, sums, bias, out, product, run_of(turn) * Tile::kRows + thread / 32 * Tile::kWarpRows,
                    first_chunk);
  };
  // Starts the wgmmas of a run and stores the results of the previous run.
  const auto step = [&](int turn, float(&sums)[32], float(&before)[32]) {
    ptx::cp_async_wait<0>();
    ptx::fence_async_proxy();
    __syncthreads();  // all threads see the run's copies; the wgmmas of run turn - 2 have completed
    if (run_of(turn + 1) < runs) load(turn + 1);
    ptx::cp_async_commit();
    start_products(sums, turn);
    ptx::wgmma_commit();
    ptx::wgmma_wait<1>();
    if (turn > 0) store(turn - 1, before);
  };

  load_rows_of_weights<data>(rows, weights, product.out_chunks, first_chunk);
  load(0);
  ptx::cp_async_commit();
  float sums[2][32];
#pragma unroll 1
  for (int turn = 0;; turn += 2) {
    step(turn, sums[0], sums[1]);
    if (run_of(turn + 1) >= runs) {
      ptx::wgmma_wait<0>();
      return store(turn, sums[0]);
    }
    step(turn + 1, sums[1], sums[0]);
    if (run_of(turn + 2) >= runs) {
      ptx::wgmma_wait<0>();
      return store(turn + 1, sums[1]);
    }
  }
}

template <typename Low, bool data>
void enqueue_warpgroup(cudaStream_t stream, const MmaProduct& product, int multiprocessors, const void* image,
                       const void* weights, const void* bias, void* out) {
  const WarpgroupProduct own{SpacedImages::of(product.parts[0]), product.out_chunks, product.bias, product.relu};
  const unsigned tiles = blocks_for(own.out_chunks, kRowChunks),
                 runs = blocks_for(own.images.all, WarpgroupTile::kRows);
  const dim3 grid(std::clamp(static_cast<unsigned>(multiprocessors) / tiles, 1u, runs), tiles);
  launch({data ? "conv_warpgroup_data" : "conv_warpgroup_forward", grid, dim3(WarpgroupTile::kThreads), stream,
          WarpgroupProduct::bytes(own.images.width)},
         conv_warpgroup_kernel<Low, data>, static_cast<const uint4*>(image), static_cast<const uint4*>(weights),
         static_cast<const float*>(bias), static_cast<uint4*>(out), own);
}

}  // namespace dp::kernels::cuda
