// End of a data gradient that is the gradient of a batch normalisation's result. It computes
// BatchNormBackwardSums of a tile in shared memory: dx is never written to global memory, and dz is written once.
#pragma once

#include "kernels/cuda/tensor_core/conv_mma_chunk.h"
#include "kernels/cuda/tensor_core/conv_mma_product.h"

namespace dp::kernels::cuda {

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

}  // namespace dp::kernels::cuda
