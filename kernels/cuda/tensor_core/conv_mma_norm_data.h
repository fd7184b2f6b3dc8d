// Kernels of a data gradient on tensor cores fused with BatchNormBackwardSums of the preceding batch normalisation.
#pragma once

#include "kernels/cuda/ops/batch_norm_sums.h"
#include "kernels/cuda/runtime/last_block.h"
#include "kernels/cuda/tensor_core/conv_mma_enqueue.h"
#include "kernels/cuda/tensor_core/conv_mma_sums.h"

namespace dp::kernels::cuda {

template <typename Tile>
__host__ __device__ int tiles_of(const Windows& windows) {
  return (windows.cells + Tile::kRows - 1) / Tile::kRows;
}

// More than kMostJoined tiles are added in groups of kOfGroup first.
inline constexpr int kMostJoined = 128, kOfGroup = 32;
inline __host__ __device__ int sum_groups(int tiles) {
  return tiles > kMostJoined ? (tiles + kOfGroup - 1) / kOfGroup : 0;
}

// Partial sums of all tiles of cells. Each block writes those of one tile for a range of channels.
struct SumsOfTiles {
  double *partials, *groups;  // 2 * channels per tile; 2 * channels per group of tiles
  unsigned* counters;         // per column of channels: first for the whole, then for each group; all 0
  SumsEnd end;
  int tiles, unused = 0;

  __device__ double* of_tile(int tile, int channels) const {
    return partials + static_cast<long long>(tile) * 2 * channels;
  }

  // Called by a block that has written the sums of a tile for Tile::kCols channels from `first` on.
  template <typename Tile>
  __device__ __forceinline__ void written(int tile, int channels, int first) const {
    const int last = min(first + Tile::kCols, channels), column = static_cast<int>(blockIdx.y);
    const int groups_of_tiles = sum_groups(tiles), columns = static_cast<int>(gridDim.y);
    const auto join = [&](const double* all, int count) {
      join_sums<Tile::kThreads>(all, static_cast<unsigned>(count), static_cast<unsigned>(channels),
                                static_cast<unsigned>(first), static_cast<unsigned>(last), end);
    };
    if (groups_of_tiles == 0) {
      if (is_last_block(counters + column, static_cast<unsigned>(tiles))) join(partials, tiles);
      return;
    }
    const int group = tile / kOfGroup, begin = group * kOfGroup, behind = min(begin + kOfGroup, tiles);
    if (!is_last_block(counters + (1 + group) * columns + column, static_cast<unsigned>(behind - begin))) return;
    for (int at = static_cast<int>(threadIdx.x); at < 2 * Tile::kCols; at += Tile::kThreads) {
      const int channel = first + at % Tile::kCols, number = at / Tile::kCols * channels + channel;
      if (channel >= last) continue;
      double sum = 0;
#pragma unroll 8
      for (int each = begin; each < behind; ++each) sum += __ldcg(of_tile(each, channels) + number);
      groups[static_cast<long long>(group) * 2 * channels + number] = sum;
    }
    if (is_last_block(counters + column, static_cast<unsigned>(groups_of_tiles))) join(groups, groups_of_tiles);
  }
};

// blockIdx: as in conv_mma_kernel.
template <typename Low, typename Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    conv_mma_norm_data_kernel(const uint4* dy, const uint4* weights, NormGradient norm, uint4* dz, SumsOfTiles all,
                              MmaProduct product) {
  DP_DYNAMIC_SHARED(uint4, ring);
  DP_SHARED(Tap, taps, [kTapPlaces]);
  DP_SHARED(NormNumbers<Tile::kCols>, numbers, [1]);
  const Windows& windows = product.parts[blockIdx.z];
  const int first_row = static_cast<int>(blockIdx.x) * Tile::kRows;
  const int first_chunk = static_cast<int>(blockIdx.y) * (Tile::kCols / kChunk);
  if (first_row >= windows.cells) return;  // a part smaller than the largest: nothing to do for the whole block
  if (threadIdx.x < kTapPlaces) taps[threadIdx.x] = windows.tap(static_cast<int>(threadIdx.x));
  set_numbers<Tile>(numbers[0], norm, product.out_chunks * kChunk, first_chunk * kChunk);
  __syncthreads();

  const int steps = (windows.taps() * windows.chunks * kChunk + Tile::kStep - 1) / Tile::kStep;
  const WindowRows<Tile> rows(dy, windows, taps, first_row);
  const WeightColumns<Tile> cols(weights, product, windows, taps, first_chunk);
  MmaSums<Tile> sums = {};
  multiply<Low, Tile, true, false>(
      ring, steps,
      [&](uint4* stage, int step) {
        rows.load(stage, step);
        cols.load(stage + Tile::kChunksA, step);
      },
      sums);
  int tile = static_cast<int>(blockIdx.x);  // numbered over all parts
  for (unsigned part = 0; part < blockIdx.z; ++part) tile += tiles_of<Tile>(product.parts[part]);
  const int channels = product.out_chunks * kChunk;
  TileGradient<Low, Tile>(norm, numbers[0], product, windows, first_row, first_chunk)
      .end(reinterpret_cast<unsigned*>(ring), sums, dz, all.of_tile(tile, channels));
  all.written<Tile>(tile, channels, first_chunk * kChunk);
}

inline constexpr int kLineChunks = 8;  // per line of the L2 cache

// blockIdx: as in conv_mma_resident_kernel. A tile is a run, whichever block computes it.
template <typename Low>
__global__ void __launch_bounds__(ResidentTile::kThreads, ResidentTile::kBlocks)
    conv_mma_norm_resident_data_kernel(const uint4* dy, const uint4* weights, NormGradient norm, uint4* dz,
                                       SumsOfTiles all, MmaProduct product) {
  using Tile = ResidentTile;
  DP_DYNAMIC_SHARED(uint4, shared);
  DP_SHARED(NormNumbers<Tile::kCols>, numbers, [1]);
  const int channels = product.out_chunks * kChunk, first_chunk = static_cast<int>(blockIdx.y) * kRowChunks;
  set_numbers<Tile>(numbers[0], norm, channels, first_chunk * kChunk);
  const Windows& windows = product.parts[0];
  const auto end = [&](unsigned* staged, const MmaSums<Tile>& sums, int run) {
    TileGradient<Low, Tile>(norm, numbers[0], product, windows, run * Tile::kRows, first_chunk)
        .end(staged, sums, dz, all.of_tile(run, channels));
    all.written<Tile>(run, channels, first_chunk * kChunk);
  };
  // Only one block fits on a multiprocessor, and while it multiplies it does not read the
  // tensors of the normalisation. They are prefetched to the L2 cache during that time.
  const auto prefetch = [&](uint4*, int run) {
    static_assert(Tile::kThreads == Tile::kRows);
    const int cell = run * Tile::kRows + static_cast<int>(threadIdx.x);
    if (cell >= windows.cells) return;
    for (const uint4* const tensor : {norm.x, norm.y, norm.dy2})
      if (tensor != nullptr) ptx::prefetch_l2(tensor + cell * product.out_chunks + first_chunk);
  };
  // No barrier is needed here: multiply_runs() passes one before it calls `end`, which reads `numbers`.
  multiply_runs<Low, true>(shared, dy, weights, product, end, prefetch);
}

// blockIdx: as in conv_wgmma_kernel. A tile is a run, whichever block computes it.
template <typename Low, typename Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    conv_wgmma_norm_data_kernel(const uint4* dy, const uint4* weights, NormGradient norm, uint4* dz, SumsOfTiles all,
                                MmaProduct product) {
  DP_DYNAMIC_SHARED(uint4, shared);
  DP_SHARED(NormNumbers<Tile::kCols>, numbers, [1]);
  const int channels = product.out_chunks * kChunk, first_chunk = static_cast<int>(blockIdx.y) * (Tile::kCols / kChunk);
  set_numbers<Tile>(numbers[0], norm, channels, first_chunk * kChunk);
  const Windows& windows = product.parts[0];
  const auto end = [&](unsigned* staged, const MmaSums<Tile>& sums, int run) {
    TileGradient<Low, Tile>(norm, numbers[0], product, windows, run * Tile::kRows, first_chunk)
        .end(staged, sums, dz, all.of_tile(run, channels));
    all.written<Tile>(run, channels, first_chunk * kChunk);
  };
  // As in the resident kernel.
  const auto prefetch = [&](int run) {
    static_assert(Tile::kThreads == Tile::kRows);
    const int cell = run * Tile::kRows + static_cast<int>(threadIdx.x);
    if (cell >= windows.cells) return;
    for (const uint4* const tensor : {norm.x, norm.y, norm.dy2})
      for (int chunk = first_chunk; chunk < min(first_chunk + Tile::kCols / kChunk, product.out_chunks);
           chunk += kLineChunks)
        if (tensor != nullptr) ptx::prefetch_l2(tensor + cell * product.out_chunks + chunk);
  };
  // No barrier is needed here: multiply_runs_by_wgmma() passes one before it calls `end`, which reads `numbers`.
  multiply_runs_by_wgmma<Low, Tile, true>(shared, dy, weights, product, end, Ignored{}, prefetch);
}

// Kernel arguments, the same for every tile.
struct NormDataArgs {
  const void *dy, *weights;
  NormGradient norm;
  void* dz;
  SumsOfTiles sums;
};

template <typename Low>
void enqueue_norm_data(cudaStream_t stream, MmaTileKind kind, const MmaProduct& product, int multiprocessors,
                       const NormDataArgs& args) {
  const auto run = [&](const Launch& where, auto kernel) {
    launch(where, kernel, static_cast<const uint4*>(args.dy), static_cast<const uint4*>(args.weights), args.norm,
           static_cast<uint4*>(args.dz), args.sums, product);
  };
  with_tile(kind, [&]<typename Tile>() {
    if constexpr (std::is_same_v<Tile, ResidentTile>)
      run({"conv_mma_norm_resident_data", resident_grid(product, multiprocessors), dim3(Tile::kThreads), stream,
           ResidentRows(product.parts[0].width).bytes()},
          conv_mma_norm_resident_data_kernel<Low>);
    else if constexpr (kIsWgmmaTile<Tile>)
      run({"conv_wgmma_norm_data", wgmma_grid<Tile>(product, multiprocessors), dim3(Tile::kThreads), stream,
           WgmmaRows<Tile>(product.parts[0].width).bytes()},
          conv_wgmma_norm_data_kernel<Low, Tile>);
    else
      run({"conv_mma_norm_data", grid_of<Tile>(product), dim3(Tile::kThreads), stream, Tile::kSharedBytes},
          conv_mma_norm_data_kernel<Low, Tile>);
  });
}

}  // namespace dp::kernels::cuda
