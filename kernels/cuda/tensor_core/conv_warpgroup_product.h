// Products of warpgroups compute forward and data gradient of an image with 64 channels. A block keeps all weights in
// shared memory. It multiplies one run of cells while it copies the next and stores the results of the previous one.
#pragma once

#include "kernels/cuda/tensor_core/conv_mma_product.h"
#include "kernels/cuda/tensor_core/spaced_images.h"
#include "ptx.h"

namespace dp::kernels::cuda {

// The sums of a warp: 16 cells and 64 channels. The step and the stages are not used.
using WarpgroupTile = MmaTileSize<192, 64, 16, 64, 64, 3, 1>;

struct WarpgroupProduct {
  SpacedImages images;
  int out_chunks;  // of the result's channels
  int bias, relu;

  static constexpr int kStages = 3, kWeightRows = kResidentTaps * kResidentChannels;

  // Rows of kRowChunks chunks: of a stage, a run and the cells around it; of all stages and the weights.
  __host__ __device__ static int stage_rows(int width) {
    return (WarpgroupTile::kRows + 2 * spaced_reach(width) + 7) / 8 * 8;
  }
  __host__ __device__ static int rows(int width) { return kWeightRows + kStages * stage_rows(width); }
  // With the results of a run, and 1,024 bytes for the alignment of the first row.
  static std::size_t bytes(int width) {
    return static_cast<std::size_t>(rows(width)) * kRowChunks * 16 +
           WarpgroupTile::kRows * kStagedPitch<WarpgroupTile> * sizeof(unsigned) + 1024;
  }
};
static_assert(std::has_unique_object_representations_v<WarpgroupProduct>);

// Copies the weights of 64 channels of the result, starting at chunk `first`, in rows of 64 channels: [tap, channel of
// y][channel of x]. A forward has 64 channels of x, a data gradient 64 channels of y.
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

// Rounds the sums of a warp and writes them to `out`. `staged`: shared memory of the warp, 16 rows. first_cell: of the
// warp's rows, in the spaced images.
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
  __syncwarp();  // the next run overwrites the rows
}

// blockIdx: block among those that share the runs, tile of channels of the result. Every block has a run.
template <typename Low, bool data>
__global__ void __launch_bounds__(WarpgroupTile::kThreads, 1)
    conv_warpgroup_kernel(const uint4* image, const uint4* weights, const float* bias, uint4* out,
                          WarpgroupProduct product) {
  using P = WarpgroupProduct;
  using Tile = WarpgroupTile;
  DP_DYNAMIC_SHARED(uint4, shared);
  uint4* const rows = shared + (1024 - ptx::shared_address(shared) % 1024) % 1024 / 16;
  const SpacedImages& images = product.images;
  const int reach = spaced_reach(images.width), stage_chunks = P::stage_rows(images.width) * kRowChunks;
  uint4* const stages = rows + P::kWeightRows * kRowChunks;
  const int thread = static_cast<int>(threadIdx.x), first_chunk = static_cast<int>(blockIdx.y) * kRowChunks;
  auto* const staged = reinterpret_cast<unsigned*>(rows + P::rows(images.width) * kRowChunks) +
                       thread / 32 * Tile::kWarpRows * kStagedPitch<Tile>;
  const int runs = (images.all + Tile::kRows - 1) / Tile::kRows, stride = static_cast<int>(gridDim.x);

  // `turn`: number of the run among those of this block.
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
    ptx::settle(sums);
    const uint4* const own = stages + (turn % P::kStages * stage_chunks + thread / 128 * 64 * kRowChunks);
    ptx::begin_products();
#pragma unroll
    for (int tap = 0; tap < kResidentTaps; ++tap) {
      const int line = tap / 3, column = tap - line * 3;
      const uint4* const cells =
          own + (data ? (2 - line) * images.pitch + 2 - column : line * images.pitch + column) * kRowChunks;
      const uint4* const tap_rows = rows + tap * kResidentChannels * kRowChunks;
#pragma unroll
      for (int k = 0; k < kResidentChannels; k += 16)
        ptx::multiply<Low, true, !data>(sums, ptx::warpgroup_operand(cells + k / kChunk),
                                        ptx::warpgroup_operand(tap_rows + (data ? k * kRowChunks : k / kChunk)));
    }
  };
  const auto store = [&](int turn, float(&sums)[32]) {
    ptx::settle(sums);
    store_rows<Low>(staged, sums, bias, out, product, run_of(turn) * Tile::kRows + thread / 32 * Tile::kWarpRows,
                    first_chunk);
  };
  // Starts the products of a run, and stores those of the previous one.
  const auto step = [&](int turn, float(&sums)[32], float(&before)[32]) {
    ptx::cp_async_wait<0>();
    ptx::publish_to_products();
    __syncthreads();  // the run's copies are visible to all; the products before the previous ones have ended
    if (run_of(turn + 1) < runs) load(turn + 1);
    ptx::cp_async_commit();
    start_products(sums, turn);
    ptx::commit_products();
    ptx::wait_for_products<1>();
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
      ptx::wait_for_products<0>();
      return store(turn, sums[0]);
    }
    step(turn + 1, sums[1], sums[0]);
    if (run_of(turn + 2) >= runs) {
      ptx::wait_for_products<0>();
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
