// Batch normalisation inside the tensor-core convolutions: normalises the image in shared
// memory, and computes the moments of the results before they leave shared memory.
#pragma once

#include <optional>

#include "kernels/cuda/ops/batch_norm_join.h"
#include "kernels/cuda/runtime/owner.h"
#include "kernels/cuda/tensor_core/conv_mma_product.h"
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

}  // namespace dp::kernels::cuda
