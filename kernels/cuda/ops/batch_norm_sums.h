// Last steps of BatchNormBackwardSums: writes its results, and adds the partial sums of fused convolutions.
#pragma once

#include "kernels/cuda/ops/batch_norm.h"
#include "kernels/cuda/runtime/block_reduce.h"

namespace dp::kernels::cuda {

// The op's stats argument and its results.
struct SumsEnd {
  const double* stats;
  double* sums;
  float *dweight, *dbias;

  __device__ void write(unsigned channels, unsigned channel, double sum, double product) const {
    const ChannelStats own = channel_stats(stats, channels, channel);
    product = (product + (static_cast<float>(own.mean) - own.mean) * sum) * own.inv_std;
    sums[channel] = sum;
    sums[channels + channel] = product;
    dbias[channel] = static_cast<float>(sum);
    dweight[channel] = static_cast<float>(product);
  }
};

// Adds the partial sums of the channels [first, last) and writes the results. `partials`: for each part,
// the sums of dz of all channels, then the sums of dz * (x - float(mean)). Each lane of a warp adds
// every 32nd part, then the lanes are added in a tree. The order depends only on the number of parts.
template <unsigned kThreads>
__device__ __forceinline__ void join_sums(const double* partials, unsigned parts, unsigned channels, unsigned first,
                                          unsigned last, const SumsEnd& end) {
  constexpr unsigned kEach = 4;  // channels per warp at a time
  const unsigned lane = threadIdx.x % 32;
#pragma unroll 1
  for (unsigned channel = first + threadIdx.x / 32 * kEach; channel < last; channel += kThreads / 32 * kEach) {
    double sum[kEach] = {}, product[kEach] = {};
#pragma unroll 4
    for (unsigned part = lane; part < parts; part += 32) {
      const double* const from = partials + static_cast<long long>(part) * 2 * channels + channel;
#pragma unroll
      for (unsigned k = 0; k < kEach; ++k)
        if (channel + k < last) sum[k] += __ldcg(from + k), product[k] += __ldcg(from + channels + k);
    }
    for (unsigned distance = 16; distance > 0; distance /= 2)
#pragma unroll
      for (unsigned k = 0; k < kEach; ++k) {
        sum[k] += __shfl_down_sync(kFullWarp, sum[k], distance);
        product[k] += __shfl_down_sync(kFullWarp, product[k], distance);
      }
    if (lane == 0)
#pragma unroll
      for (unsigned k = 0; k < kEach; ++k)
        if (channel + k < last) end.write(channels, channel + k, sum[k], product[k]);
  }
}

}  // namespace dp::kernels::cuda
