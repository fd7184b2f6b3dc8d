// Reduces two sums over the rows of each channel: within a warp, within a block, then over all blocks. The order of
// additions depends only on the NormCut.
#pragma once

#include "kernels/cuda/ops/batch_norm.h"
#include "kernels/cuda/runtime/block_reduce.h"
#include "kernels/cuda/runtime/last_block.h"

namespace dp::kernels::cuda {

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

}  // namespace dp::kernels::cuda
