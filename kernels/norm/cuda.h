// Shared code of batch normalisation on CUDA: partition into blocks, row reductions, op base classes.
#pragma once

#include <algorithm>
#include <memory>

#include "kernels/device/cuda/block.h"
#include "kernels/device/cuda/cuda_op.h"
#include "kernels/device/cuda/pack.h"
#include "kernels/device/cuda/runtime.h"
#include "kernels/norm/op.h"

namespace dp::kernels::cuda {

// How batch normalisation divides a tensor into blocks. Channels last, the tensor is a matrix
// of `rows` (N*H*W) x channels: a block takes a part of the rows and `lanes` packs of
// channels. Row-major, a block takes one channel and a part of its N*H*W values, which also
// count as `rows`. The division, and so the order of all sums, depends only on the shape,
// the layout, and whether packs are aligned.

inline constexpr unsigned kNormThreads = 256;
inline constexpr int kNormChunk = 4;                       // rows that a thread of an affine step loads at once
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

// Work of a thread in a block of the cut: kWidth channels from `channel` on, and rows row, row + step, ...
// below `end`. `end` is 0 for a thread past the last channel.
struct NormSpot {
  unsigned channel, row, end, step, part;
};
template <int kWidth, unsigned kThreads = kNormThreads>
__device__ __forceinline__ NormSpot norm_spot(const NormCut& cut, unsigned block) {
  NormSpot spot;
  spot.part = block / cut.tiles;
  spot.channel = (block % cut.tiles * cut.lanes + threadIdx.x % cut.lanes) * kWidth;
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
// nearest to the mean; the offset accounts for the difference to the mean. A null weight is 1, a null bias is 0.
struct NormAffine {
  float shift, scale, offset;
};
__device__ __forceinline__ NormAffine norm_affine(const double* stats, const float* weight, const float* bias,
                                                  unsigned channels, unsigned channel) {
  const ChannelStats own = channel_stats(stats, channels, channel);
  const double scale = own.inv_std * (weight ? weight[channel] : 1);
  const float shift = static_cast<float>(own.mean);
  return {shift, static_cast<float>(scale),
          static_cast<float>((shift - own.mean) * scale + (bias ? bias[channel] : 0))};
}
__device__ __forceinline__ float normalized(float x, float shift, float scale, float offset) {
  return fmaf(x - shift, scale, offset);
}
__device__ __forceinline__ float rectified(float x) { return x < 0 ? 0.f : x; }  // lets NaN through

// An affine step computes the coefficients of its channels once per block.

// Calls prepare(channel, slot) once for each channel of this block. A barrier must follow.
template <int kWidth, typename Prepare>
__device__ __forceinline__ void each_channel(const NormCut& cut, const Prepare& prepare) {
  const unsigned first = blockIdx.x % cut.tiles * cut.lanes * kWidth;
  for (unsigned slot = threadIdx.x; slot < cut.lanes * kWidth && first + slot < cut.channels; slot += kNormThreads)
    prepare(first + slot, slot);
}

template <int kWidth>
__device__ __forceinline__ Pack<kWidth> own_numbers(const float (&numbers)[kNormChannels], const NormCut& cut) {
  Pack<kWidth> own;
  for (int k = 0; k < kWidth; ++k) own.v[k] = numbers[threadIdx.x % cut.lanes * kWidth + k];
  return own;
}

inline Launch over_parts(const char* kernel, const NormCut& cut, cudaStream_t stream, unsigned threads = kNormThreads) {
  return {kernel, dim3(cut.tiles * cut.parts), dim3(threads), stream};
}

// Reduces two sums over the rows of each channel: within a warp, within a block, then over all blocks. The order of
// additions depends only on the NormCut.

// One block per multiprocessor of an H100 or H200. More blocks would run in a second wave, and the last block would
// read more partial sums. 64 channels of 16 bits are one cache line of 128 bytes (docs/decisions/0058).
inline constexpr unsigned kReduceThreads = 512, kReduceBlocks = 132, kReducedChannels = 64;
// Minimum of resident blocks for ptxas. Without it, ptxas may limit registers for two blocks, and packs of eight spill.
inline constexpr unsigned kReduceResident = 1;

// Adds the two sums of all threads for each channel. The last block of each tile of channels calls
// finish(channel, first, second) once per channel. `parts` has 2 * cut.parts doubles per channel, `counters` one
// counter per tile, all 0. All threads must call this function.
template <int kWidth, typename Finish>
__device__ __forceinline__ void reduce_rows(double (&first)[kWidth], double (&second)[kWidth], double* parts,
                                            unsigned* counters, const NormCut& cut, const NormSpot& spot,
                                            const Finish& finish) {
  constexpr unsigned kWarps = kReduceThreads / 32;
  DP_SHARED(double, of_warps, [kWarps][2 * kReducedChannels]);
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, width = cut.lanes * kWidth;
  for (unsigned distance = 16; distance >= cut.lanes; distance /= 2)
    for (int k = 0; k < kWidth; ++k) {
      first[k] += __shfl_xor_sync(kFullWarp, first[k], distance);
      second[k] += __shfl_xor_sync(kFullWarp, second[k], distance);
    }
  if (lane < cut.lanes)
    for (int k = 0; k < kWidth; ++k)
      of_warps[warp][lane * kWidth + k] = first[k], of_warps[warp][width + lane * kWidth + k] = second[k];
  __syncthreads();
  const unsigned tile = blockIdx.x % cut.tiles, begin = tile * width, end = min(begin + width, cut.channels);
  for (unsigned column = threadIdx.x; column < 2 * width; column += kReduceThreads) {
    double sum = 0;
    for (unsigned i = 0; i < kWarps; ++i) sum += of_warps[i][column];
    const unsigned channel = begin + column % width;
    if (channel < end) parts[(2LL * channel + column / width) * cut.parts + spot.part] = sum;
  }
  if (!is_last_block(counters + tile, cut.parts)) return;

  constexpr unsigned kEach = 4;  // channels of a warp at a time
#pragma unroll 1
  for (unsigned channel = begin + warp * kEach; channel < end; channel += kWarps * kEach) {
    double sums[2 * kEach] = {};
#pragma unroll 2
    for (unsigned part = lane; part < cut.parts; part += 32)
#pragma unroll
      for (unsigned k = 0; k < 2 * kEach; ++k)
        if (channel + k / 2 < end) sums[k] += __ldcg(parts + (2LL * channel + k) * cut.parts + part);
#pragma unroll
    for (unsigned k = 0; k < 2 * kEach; ++k) sums[k] = warp_sum(sums[k]);
    if (lane == 0)
#pragma unroll
      for (unsigned k = 0; k < kEach; ++k)
        if (channel + k < end) finish(channel + k, sums[2 * k], sums[2 * k + 1]);
  }
}

// Layer normalisation: the ops with groups = kEachPixel (cuda_pixels.cu).
std::unique_ptr<CudaOp> make_pixelwise(const GroupNormForward& desc);
std::unique_ptr<CudaOp> make_pixelwise(const GroupNormBackward& desc);

// Base classes of the batch normalisation ops on whole tensors: layout of x, and its
// division into blocks with and without packs.

class NormOp : public CudaOp {
 protected:
  // `width`: elements of a pack.
  NormOp(const TensorDesc& x, unsigned width, const NormLimits& limits) : width_(width) {
    tensors_ = {resolved_channels_last(x)};
    channels_last_ = is_channels_last(tensors_[0]);
    for (const bool packs : {false, true}) cuts_[packs] = cut_norm(tensors_[0], packs ? width : 1, limits);
  }

  // Workspace for two doubles per channel and part.
  std::size_t parts_bytes() const {
    return std::size_t{std::max(cuts_[0].parts, cuts_[1].parts)} * 2 * cuts_[0].channels * sizeof(double);
  }

  unsigned most_tiles() const { return std::max(cuts_[0].tiles, cuts_[1].tiles); }

  // Calls run.operator()<T, kWidth, kChannelsLast>(cut). Packs have four elements, or 16
  // bytes with `wide`. `aligned`: all tensors are aligned to packs.
  template <bool wide = false, typename Run>
  void over_values(bool aligned, const Run& run) const {
    const bool packs = channels_last_ && cuts_[0].channels % width_ == 0 && aligned;
    const NormCut& cut = cuts_[packs];
    in_type(tensors_[0].type, [&]<typename T>() {
      if (packs) return run.template operator() < T, wide ? kWidePack<T> : 4, true > (cut);
      return channels_last_ ? run.template operator()<T, 1, true>(cut) : run.template operator()<T, 1, false>(cut);
    });
  }
  bool is_empty() const { return cuts_[0].rows == 0; }

 private:
  unsigned width_;
  bool channels_last_;
  NormCut cuts_[2];  // for single elements, for packs
};

// Base of ops that reduce each channel. Packs have 16 bytes.
class ReducingNormOp : public NormOp {
 public:
  std::size_t workspace_bytes() const override { return parts_bytes(); }

 protected:
  // `chunk`: rows that a thread takes at once.
  ReducingNormOp(const TensorDesc& x, unsigned chunk)
      : NormOp(x, static_cast<unsigned>(16 / size_of(x.type)),
               {kReduceThreads, chunk, kReduceBlocks, kReducedChannels}),
        counters_(zeroed_counters(most_tiles())) {}

  unsigned* counters() const { return static_cast<unsigned*>(counters_.get()); }

 private:
  DeviceMemory counters_;  // one per tile of channels
};

}  // namespace dp::kernels::cuda
