// Batch normalisation inside the tensor-core convolutions: normalises the image in shared
// memory, and computes the moments of the results before they leave shared memory.
#pragma once

#include <optional>

#include "kernels/conv/cuda_mma_enqueue.h"
#include "kernels/conv/cuda_mma_tile.h"
#include "kernels/device/cuda/block.h"
#include "kernels/device/cuda/runtime.h"
#include "kernels/norm/cuda_reduce.h"
#include "kernels/ops.h"

namespace dp::kernels::cuda {

inline constexpr int kMostNormChannels = 1024;  // their coefficients take 12 KiB of shared memory
inline constexpr std::size_t norm_bytes(int channels) { return static_cast<std::size_t>(channels) * 3 * sizeof(float); }

// norm_affine() of all channels of an image, in shared memory: shifts, scales, offsets.
class ImageNorm {
 public:
  __device__ ImageNorm(float* numbers, int channels) : numbers_(numbers), channels_(channels) {}
  // Called by all threads of a block. A barrier must follow.
  __device__ void find(const double* stats, const float* weight, const float* bias) const {
    for (int c = static_cast<int>(threadIdx.x); c < channels_; c += static_cast<int>(blockDim.x)) {
      const NormAffine own =
          norm_affine(stats, weight, bias, static_cast<unsigned>(channels_), static_cast<unsigned>(c));
      numbers_[c] = own.shift, numbers_[channels_ + c] = own.scale, numbers_[2 * channels_ + c] = own.offset;
    }
  }

  // Coefficients of the eight channels of a chunk.
  struct OfChunk {
    ChunkValues shift, scale, offset;

    template <typename Low>
    __device__ __forceinline__ uint4 normalized_and_rectified(const uint4& chunk) const {
      ChunkValues values = values_of<Low>(chunk);
      for (int k = 0; k < kChunk; ++k)
        values.v[k] = rectified(normalized(values.v[k], shift.v[k], scale.v[k], offset.v[k]));
      return rounded<Low>(values);
    }
  };
  // The same for chunk `number` of a cell, two channels at a time, which takes few registers.
  template <typename Low>
  __device__ __forceinline__ uint4 normalized_and_rectified(uint4 chunk, int number) const {
#pragma unroll 1
    for (int c = number * kChunk; c < (number + 1) * kChunk; c += 2) {
      const auto pair_of = [&](int row) { return *reinterpret_cast<const float2*>(numbers_ + row * channels_ + c); };
      const float2 pair = floats_of<Low>(chunk.x), shift = pair_of(0), scale = pair_of(1), offset = pair_of(2);
      chunk = make_uint4(chunk.y, chunk.z, chunk.w,
                         rounded_pair<Low>(rectified(normalized(pair.x, shift.x, scale.x, offset.x)),
                                           rectified(normalized(pair.y, shift.y, scale.y, offset.y))));
    }
    return chunk;
  }
  __device__ OfChunk of_chunk(int chunk) const {
    return {eight(chunk * kChunk), eight(channels_ + chunk * kChunk), eight(2 * channels_ + chunk * kChunk)};
  }

 private:
  __device__ ChunkValues eight(int first) const {
    const auto* const fours = reinterpret_cast<const float4*>(numbers_ + first);
    const float4 a = fours[0], b = fours[1];
    return {{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}};
  }

  float* numbers_;
  int channels_;
};

template <int threads>
struct MomentsOfThreads {
  double means[2][threads], squares[2][threads];
  unsigned counts[threads];
};

// Computes the moments of the first `cells` rows of a tile from the results that store_results()
// left in `staged`. Overwrites `staged`; a barrier must follow before it is used again. A thread
// takes two channels of some rows. It sums deviations from their rounded mean in float, eight at
// a time, and adds these sums in double. `part`: the means of all channels, then the squares.
template <typename Low, typename Tile>
__device__ __forceinline__ void store_moments(unsigned* staged, int cells, double* part, int channels,
                                              int first_channel) {
  constexpr int kPitch = kStagedPitch<Tile>, kPairs = Tile::kCols / 2, kAtOnce = 8;
  constexpr int kLines = Tile::kRows * kPairs / Tile::kThreads;  // per thread
  static_assert(kLines % kAtOnce == 0 && Tile::kThreads % kPairs == 0);
  static_assert(sizeof(MomentsOfThreads<Tile::kThreads>) <= Tile::kRows * kPitch * sizeof(unsigned));
  const int pair = static_cast<int>(threadIdx.x) % kPairs, first = static_cast<int>(threadIdx.x) / kPairs * kLines;
  const int count = max(0, min(cells - first, kLines));
  const unsigned* const own = staged + first * kPitch + pair;

  float2 sum = make_float2(0, 0);
#pragma unroll 1
  for (int line = 0; line < kLines; line += kAtOnce)
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const float2 values = floats_of<Low>(own[(line + i) * kPitch]);  // zeros past the last cell
      sum.x += values.x, sum.y += values.y;
    }
  const float per_value = 1.f / static_cast<float>(max(count, 1));
  // __fmul_rn: the product is rounded before it is subtracted, never contracted to an FMA.
  const float2 middle = make_float2(__fmul_rn(sum.x, per_value), __fmul_rn(sum.y, per_value));
  double away[2] = {}, squares[2] = {};
#pragma unroll 1
  for (int line = 0; line < count; line += kAtOnce) {
    float2 some_away = make_float2(0, 0), some_squares = make_float2(0, 0);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const float2 values = floats_of<Low>(own[(line + i) * kPitch]);
      const bool counts = line + i < count;
      const float x = counts ? values.x - middle.x : 0.f, y = counts ? values.y - middle.y : 0.f;
      some_away.x += x, some_away.y += y;
      some_squares.x = fmaf(x, x, some_squares.x), some_squares.y = fmaf(y, y, some_squares.y);
    }
    away[0] += static_cast<double>(some_away.x), away[1] += static_cast<double>(some_away.y);
    squares[0] += static_cast<double>(some_squares.x), squares[1] += static_cast<double>(some_squares.y);
  }
  const double share = 1 / static_cast<double>(max(count, 1));
  Moments moments[2];
  for (int k = 0; k < 2; ++k) {
    const double correction = away[k] * share;
    moments[k].mean = static_cast<double>(k == 0 ? middle.x : middle.y) + correction;
    moments[k].squares = squares[k] - away[k] * correction;
  }

  __syncthreads();  // all results have been read
  auto& all = *reinterpret_cast<MomentsOfThreads<Tile::kThreads>*>(staged);
  merge_in_block(moments, static_cast<unsigned>(count), kPairs, all.means, all.squares, all.counts);
  const int channel = first_channel + 2 * pair;
  if (static_cast<int>(threadIdx.x) >= kPairs || channel >= channels) return;
  for (int k = 0; k < 2; ++k) {
    part[channel + k] = moments[k].mean;
    part[channels + channel + k] = moments[k].squares;
  }
}

// Computes the moments of the stored results. Null parts: not computed.
struct StoredMoments {
  PartsOfMoments of;
  MomentsEnd end;
  NormCut cut;

  // Adds the moments of a tile of rows. `staged`: as store_results() left it.
  template <typename Low, typename Tile>
  __device__ __forceinline__ void take(unsigned* staged, int tile, int first_channel) const {
    if (of.parts == nullptr) return;
    const int channels = static_cast<int>(cut.channels);
    store_moments<Low, Tile>(staged, static_cast<int>(cut.rows) - tile * Tile::kRows,
                             of.parts + static_cast<long long>(tile) * 2 * channels, channels, first_channel);
    end_part<Tile::kThreads>(of, cut, end, static_cast<unsigned>(tile), blockIdx.y, gridDim.y,
                             static_cast<unsigned>(first_channel),
                             static_cast<unsigned>(min(first_channel + Tile::kCols, channels)));
  }
};

// Host side of StoredMoments. Each block of the op stores one tile of rows x cols results.
class MomentsOfTiles {
 public:
  MomentsOfTiles(const NormConv2dForward& d, unsigned cells, int rows, int cols) : wanted_(d.moments), eps_(d.eps) {
    cut_.channels = static_cast<unsigned>(d.y.shape[1]);
    cut_.rows = cells;
    cut_.part_rows = static_cast<unsigned>(rows);
    cut_.parts = blocks_for(cells, rows);
    if (wanted_) counters_ = zeroed_counters((1 + join_groups(cut_)) * blocks_for(cut_.channels, cols));
  }
  std::size_t workspace_bytes() const {
    return wanted_ ? (cut_.parts + join_groups(cut_)) * part_doubles() * sizeof(double) : 0;
  }
  // `moments`, `y_stats`: arguments of the op.
  StoredMoments into(void* workspace, void* moments, void* y_stats) const {
    if (!wanted_) return {};
    auto* const parts = static_cast<double*>(workspace);
    return {{parts, parts + cut_.parts * part_doubles(), static_cast<unsigned*>(counters_.get())},
            {static_cast<double*>(moments), static_cast<double*>(eps_ ? y_stats : nullptr), eps_.value_or(0)},
            cut_};
  }

 private:
  std::size_t part_doubles() const { return std::size_t{2} * cut_.channels; }

  bool wanted_;
  std::optional<double> eps_;
  NormCut cut_;  // division of y
  DeviceMemory counters_;
};

// End of a data gradient that is the gradient of a batch normalisation's result. It computes
// BatchNormBackwardSums of a tile in shared memory: dx is never written to global memory, and dz is written once.

// Arguments of the normalisation. The tensors have the result's layout.
struct NormGradient {
  const uint4 *dy2, *x, *y;  // dy2: null without add. y: null without ReLU, and if it is recomputed from x
  const double* stats;
  const float *weight, *bias;  // null unless y is recomputed
  int relu, unused = 0;
};
static_assert(std::has_unique_object_representations_v<NormGradient>);

// Sets the coefficients of the channels of a block's results.
template <typename Tile>
__device__ void set_numbers(NormNumbers<Tile::kCols>& numbers, const NormGradient& norm, int channels,
                            int first_channel) {
  for (int i = static_cast<int>(threadIdx.x); i < Tile::kCols; i += Tile::kThreads) {
    const auto all = static_cast<unsigned>(channels), channel = static_cast<unsigned>(first_channel + i);
    if (channel >= all) continue;
    if (norm.weight != nullptr)
      numbers.set(i, norm_affine(norm.stats, norm.weight, norm.bias, all, channel));
    else
      numbers.set(i, {static_cast<float>(channel_stats(norm.stats, all, channel).mean), 0, 0});
  }
}

// Sums of one thread's chunks: in float over kAtOnce rows, then in double.
struct ChunkSums {
  double gradients[kChunk], products[kChunk];
};

// Writes dz of a tile, and the tile's partial sums to `partial`: of dz for all channels,
// then of dz * (x - shift). `staged`: shared memory of the tile. No thread may still read
// it at the call; it is free again after the next barrier.
template <typename Low, typename Tile>
class TileGradient {
 public:
  __device__ TileGradient(const NormGradient& norm, const NormNumbers<Tile::kCols>& numbers, const MmaProduct& product,
                          const Windows& windows, int first_row, int first_chunk)
      : norm_(norm),
        numbers_(numbers),
        product_(product),
        windows_(windows),
        first_row_(first_row),
        first_chunk_(first_chunk),
        place_(static_cast<int>(threadIdx.x) % kRowChunks) {}

  __device__ __forceinline__ void end(unsigned* staged, const MmaSums<Tile>& sums, uint4* dz, double* partial) const {
    stage(staged, sums);
    __syncthreads();
    ChunkSums own = {};
    if (first_chunk_ + place_ < product_.out_chunks) {
#pragma unroll 1
      for (int turn = 0; turn < kTurns; turn += kAtOnce) add_rows(staged, turn, dz, own);
    }
    __syncthreads();  // the results have been read; the sums overwrite them
    join(reinterpret_cast<double*>(staged), own, partial);
  }

 private:
  static constexpr int kRowChunks = Tile::kCols / kChunk, kPitch = kStagedPitch<Tile>;  // per row: chunks; words
  static constexpr int kRowsAside = Tile::kThreads / kRowChunks, kTurns = Tile::kRows / kRowsAside;
  static constexpr int kAtOnce = 4;  // rows that a thread loads at once
  static_assert(Tile::kThreads % kRowChunks == 0 && kTurns % kAtOnce == 0);
  static constexpr int kSumPitch = Tile::kThreads + kRowChunks;  // between a thread's doubles; avoids bank conflicts
  static_assert(2 * kChunk * kSumPitch * sizeof(double) <= Tile::kRows * kPitch * sizeof(unsigned) ||
                2 * kChunk * kSumPitch * sizeof(double) <= Tile::kSharedBytes);

  // As in store_results().
  __device__ __forceinline__ void stage(unsigned* staged, const MmaSums<Tile>& sums) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < Tile::kDown; ++i)
#pragma unroll
      for (int j = 0; j < Tile::kAcross; ++j)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          staged[(warp_row<Tile>() + i * 16 + half * 8 + lane / 4) * kPitch +
                 (warp_col<Tile>() + j * 8 + lane % 4 * 2) / 2] =
              rounded_pair<Low>(sums[i][j][half * 2], sums[i][j][half * 2 + 1]);
  }

  // Processes one chunk of each of kAtOnce rows.
  __device__ __forceinline__ void add_rows(const unsigned* staged, int turn, uint4* dz, ChunkSums& own) const {
    int at[kAtOnce];
    uint4 seconds[kAtOnce], values[kAtOnce], outputs[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int m = first_row_ + row_of(turn + i);
      at[i] = m >= windows_.cells
                  ? -1
                  : (product_.dense ? m : windows_.out_cell(m)) * product_.out_chunks + first_chunk_ + place_;
      if (at[i] < 0) continue;
      values[i] = norm_.x[at[i]];
      if (norm_.dy2 != nullptr) seconds[i] = norm_.dy2[at[i]];
      if (norm_.y != nullptr) outputs[i] = norm_.y[at[i]];
    }
    float sums[kChunk] = {}, products[kChunk] = {};
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (at[i] < 0) continue;
      const ChunkValues x = values_of<Low>(values[i]);
      ChunkValues gradient =
          values_of<Low>(*reinterpret_cast<const uint4*>(staged + row_of(turn + i) * kPitch + place_ * 4));
      if (norm_.dy2 != nullptr) {
        const ChunkValues second = values_of<Low>(seconds[i]);
        for (int k = 0; k < kChunk; ++k) gradient.v[k] += second.v[k];
      }
      if (norm_.relu != 0) {
        if (norm_.y == nullptr) outputs[i] = rounded<Low>(numbers_.rectified_chunk(place_ * kChunk, x));
        const ChunkValues y = values_of<Low>(outputs[i]);
        for (int k = 0; k < kChunk; ++k) gradient.v[k] = y.v[k] > 0 ? gradient.v[k] : 0.f;
      }
      dz[at[i]] = rounded<Low>(gradient);
      for (int k = 0; k < kChunk; ++k) {
        sums[k] += gradient.v[k];
        products[k] = fmaf(gradient.v[k], x.v[k] - numbers_.shift[place_ * kChunk + k], products[k]);
      }
    }
    for (int k = 0; k < kChunk; ++k) own.gradients[k] += sums[k], own.products[k] += products[k];
  }

  // Adds the threads' sums in the order of their rows.
  __device__ __forceinline__ void join(double* shared, const ChunkSums& own, double* partial) const {
    const int thread = static_cast<int>(threadIdx.x), channels = product_.out_chunks * kChunk;
    for (int k = 0; k < kChunk; ++k) {
      shared[k * kSumPitch + thread] = own.gradients[k];
      shared[(kChunk + k) * kSumPitch + thread] = own.products[k];
    }
    __syncthreads();
    for (int at = thread; at < 2 * Tile::kCols; at += Tile::kThreads) {
      const int place = at % kRowChunks, number = at / kRowChunks;
      const int channel = (first_chunk_ + place) * kChunk + number % kChunk;
      if (channel >= channels) continue;
      double sum = 0;
      for (int row = 0; row < kRowsAside; ++row) sum += shared[number * kSumPitch + row * kRowChunks + place];
      partial[number / kChunk * channels + channel] = sum;
    }
  }
  __device__ static int row_of(int turn) { return turn * kRowsAside + static_cast<int>(threadIdx.x) / kRowChunks; }

  const NormGradient& norm_;
  const NormNumbers<Tile::kCols>& numbers_;
  const MmaProduct& product_;
  const Windows& windows_;
  int first_row_, first_chunk_, place_;
};

// Kernels of a data gradient on tensor cores fused with BatchNormBackwardSums of the preceding batch normalisation.

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
