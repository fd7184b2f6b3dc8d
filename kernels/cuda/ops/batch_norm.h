// How batch normalisation divides a tensor into blocks. Channels last, the tensor is a matrix
// of `rows` (N*H*W) x channels: a block takes a part of the rows and `lanes` packs of
// channels. Row-major, a block takes one channel and a part of its N*H*W values, which also
// count as `rows`. The division, and so the order of all sums, depends only on the shape,
// the layout, and whether packs are aligned.
#pragma once

#include <algorithm>

#include "kernels/cuda/ops/orders.h"
#include "kernels/cuda/ops/pack.h"

namespace dp::kernels::cuda {

inline constexpr unsigned kNormThreads = 256;
inline constexpr unsigned kNormLanes = 32;                 // at most
inline constexpr unsigned kNormChannels = 4 * kNormLanes;  // per block, at most

// Limits of a kernel: threads of a block, rows that a thread takes at once, blocks, channels of a block.
struct NormLimits {
  unsigned threads, chunk, blocks, channels;
};

struct NormCut {
  unsigned channels = 1, pixels = 1, rows = 0;
  unsigned lanes = 1;                 // packs side by side in a block; a power of two
  unsigned tiles = 1;                 // blocks along the channels
  unsigned parts = 0, part_rows = 1;  // blocks along the rows

  __host__ __device__ unsigned part_size(unsigned part) const {
    const unsigned left = rows - part * part_rows;
    return left < part_rows ? left : part_rows;
  }
};

// Cuts x into packs of `width` elements. part_rows is a multiple of the rows that a block takes at once. The limit on
// blocks is exceeded only if the tiles of channels alone need more.
inline NormCut cut_norm(const TensorDesc& x, unsigned width, const NormLimits& limits) {
  NormCut cut;
  cut.channels = static_cast<unsigned>(x.shape[1]);
  cut.pixels = static_cast<unsigned>(x.shape[2] * x.shape[3]);
  cut.rows = index_count(x) / cut.channels;
  const unsigned packs = cut.channels / width, lanes = std::min(kNormLanes, limits.channels / width);
  if (is_channels_last(x))
    while (cut.lanes < packs && cut.lanes < lanes) cut.lanes *= 2;
  cut.tiles = std::max(1u, blocks_for(packs, cut.lanes));
  const unsigned step = limits.threads / cut.lanes * limits.chunk;
  const unsigned wanted = std::max(1u, limits.blocks / cut.tiles);
  cut.part_rows = std::max(1u, blocks_for(blocks_for(cut.rows, wanted), step)) * step;
  cut.parts = std::max(1u, blocks_for(cut.rows, cut.part_rows));
  return cut;
}

// Work of a thread: kWidth channels from `channel` on, and rows row, row + step, ...
// below `end`. `end` is 0 for a thread past the last channel.
struct NormSpot {
  unsigned channel, row, end, step, part;
};
template <int kWidth, unsigned kThreads = kNormThreads>
__device__ __forceinline__ NormSpot norm_spot(const NormCut& cut) {
  NormSpot spot;
  spot.part = blockIdx.x / cut.tiles;
  spot.channel = (blockIdx.x % cut.tiles * cut.lanes + threadIdx.x % cut.lanes) * kWidth;
  spot.row = spot.part * cut.part_rows + threadIdx.x / cut.lanes;
  spot.end = spot.channel < cut.channels ? spot.part * cut.part_rows + cut.part_size(spot.part) : 0;
  spot.step = kThreads / cut.lanes;
  return spot;
}

template <bool kChannelsLast>
__device__ __forceinline__ long long norm_place(const NormCut& cut, unsigned channel, unsigned row) {
  if constexpr (kChannelsLast) return static_cast<long long>(row) * cut.channels + channel;
  const unsigned sample = row / cut.pixels, pixel = row % cut.pixels;
  return (static_cast<long long>(sample) * cut.channels + channel) * cut.pixels + pixel;
}

// Loads a thread's next kChunk rows; rows past the last are zero.
template <int kWidth, bool kChannelsLast, int kChunk, typename T>
__device__ __forceinline__ void load_rows(const T* x, const NormCut& cut, const NormSpot& spot, unsigned row,
                                          Pack<kWidth> (&packs)[kChunk]) {
  for (unsigned i = 0; i < kChunk; ++i)
    if (row + i * spot.step < spot.end)
      packs[i] = load_pack<kWidth>(x + norm_place<kChannelsLast>(cut, spot.channel, row + i * spot.step));
    else
      packs[i] = {};
}

template <int kWidth, bool kChannelsLast, int kChunk, typename T>
__device__ __forceinline__ void store_rows(T* y, const NormCut& cut, const NormSpot& spot, unsigned row,
                                           const Pack<kWidth> (&packs)[kChunk]) {
  for (unsigned i = 0; i < kChunk; ++i)
    if (row + i * spot.step < spot.end)
      store_pack(y + norm_place<kChannelsLast>(cut, spot.channel, row + i * spot.step), packs[i]);
}

// Stats of one channel. Layout: kernels/ops.h.
struct ChannelStats {
  double count, mean, inv_std;
};
__device__ __forceinline__ ChannelStats channel_stats(const double* stats, unsigned channels, unsigned channel) {
  return {stats[0], stats[1 + channel], stats[1 + channels + channel]};
}

// Normalisation of one channel: y = (x - shift) * scale + offset. shift is the float
// nearest to the mean; the offset accounts for the difference to the mean.
struct NormAffine {
  float shift, scale, offset;
};
__device__ __forceinline__ NormAffine norm_affine(const double* stats, const float* weight, const float* bias,
                                                  unsigned channels, unsigned channel) {
  const ChannelStats own = channel_stats(stats, channels, channel);
  const double scale = own.inv_std * weight[channel];
  const float shift = static_cast<float>(own.mean);
  return {shift, static_cast<float>(scale), static_cast<float>((shift - own.mean) * scale + bias[channel])};
}
__device__ __forceinline__ float normalized(float x, float shift, float scale, float offset) {
  return fmaf(x - shift, scale, offset);
}
__device__ __forceinline__ float rectified(float x) { return x < 0 ? 0.f : x; }  // lets NaN through

inline Launch over_parts(const char* kernel, const NormCut& cut, cudaStream_t stream, unsigned threads = kNormThreads) {
  return {kernel, dim3(cut.tiles * cut.parts), dim3(threads), stream};
}

}  // namespace dp::kernels::cuda
