// Moments of parts of a tensor become those of all of it: merged in double as Chan et al. do for pairs, always in the same order.
#pragma once

#include "kernels/cuda/batch_norm.h"

namespace dp::kernels::cuda {

struct Moments {
  double mean = 0, squares = 0;  // squares: of the deviations from the mean
};

// Adds the moments of `added` values, `share` of all there are then.
__device__ __forceinline__ void merge(Moments& to, double before, const Moments& from, double share) {
  const double away = from.mean - to.mean;
  to.mean += away * share;
  to.squares += from.squares + away * away * before * share;
}

// Merges the moments of a block's threads into those of its first `lanes`; thread i has values of what thread i % lanes has. The
// last three are shared memory.
template <int kWidth, unsigned kThreads>
__device__ __forceinline__ void merge_in_block(Moments (&own)[kWidth], unsigned count, unsigned lanes,
                                               double (&means)[kWidth][kThreads], double (&squares)[kWidth][kThreads],
                                               unsigned (&counts)[kThreads]) {
  for (int k = 0; k < kWidth; ++k) means[k][threadIdx.x] = own[k].mean, squares[k][threadIdx.x] = own[k].squares;
  counts[threadIdx.x] = count;
  __syncthreads();
  for (unsigned half = kThreads / 2; half >= lanes; half /= 2) {
    if (threadIdx.x < half && counts[threadIdx.x + half] > 0) {
      const unsigned other = threadIdx.x + half, added = counts[other];
      const double share = static_cast<double>(added) / static_cast<double>(count + added);
      for (int k = 0; k < kWidth; ++k) {
        merge(own[k], count, {means[k][other], squares[k][other]}, share);
        means[k][threadIdx.x] = own[k].mean, squares[k][threadIdx.x] = own[k].squares;
      }
      counts[threadIdx.x] = count += added;
    }
    __syncthreads();
  }
}

// Of the parts of `cut`, of which only channels, rows, parts and part_rows count here: for each part the means, then the squares of all
// channels. Many parts are joined in groups first.
inline constexpr unsigned kJoinAtOnce = 256, kJoinGroup = 64;
inline unsigned join_groups(const NormCut& cut) {
  return cut.parts <= kJoinAtOnce ? 0 : blocks_for(cut.parts, kJoinGroup);
}
// `groups`: room for the moments of join_groups(cut) parts. `moments`: as BatchNormMoments writes them. In batch_norm_moments.cu.
void enqueue_join_moments(cudaStream_t stream, const double* parts, double* groups, double* moments,
                          const NormCut& cut);

}  // namespace dp::kernels::cuda
