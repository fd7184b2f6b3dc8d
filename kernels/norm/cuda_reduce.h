// Merges partial moments and finishes the reductions of batch normalisation.
#pragma once

#include "kernels/device/cuda/block.h"
#include "kernels/norm/cuda.h"

namespace dp::kernels::cuda {

// Merges the moments of parts of a tensor, in double and in a fixed order (pairwise formula of Chan et al.).

struct Moments {
  double mean = 0, squares = 0;  // squares: sum of squared deviations from the mean
};

// Merges `from` into `to`, which holds `before` values. `share`: number of values in
// `from` divided by the total number.
__device__ __forceinline__ void merge(Moments& to, double before, const Moments& from, double share) {
  const double away = from.mean - to.mean;
  to.mean += away * share;
  to.squares += from.squares + away * away * before * share;
}

// Merges the moments of threads i, i + lanes, i + 2 * lanes, ... into thread i, for i < lanes. `count`: values
// of this thread. `means`, `squares` and `counts` are shared memory. All threads of the block must call it.
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

// Destination of joined moments. Layouts as of BatchNormMoments. `stats` is null without eps.
struct MomentsEnd {
  double *moments, *stats;
  double eps;

  __device__ void write(const NormCut& cut, unsigned channel, const Moments& joined) const {
    const double squares = joined.squares < 0 ? 0 : joined.squares, count = cut.rows;  // may round below 0; NaN stays
    if (channel == 0) moments[0] = count;
    moments[1 + channel] = joined.mean;
    moments[1 + cut.channels + channel] = squares;
    if (stats == nullptr) return;
    if (channel == 0) stats[0] = count;
    stats[1 + channel] = joined.mean;
    stats[1 + cut.channels + channel] = 1 / sqrt(squares / (count > 0 ? count : 1) + eps);
  }
};

// Joins the parts [begin, end) for the channels [first, last). Of `cut`, only channels, rows and part_rows are used.
// `parts`: for each part, the means of all channels, then the squares. A warp handles kJoinEach channels at a time:
// each lane merges every 32nd part, then the lanes are merged in a tree. Calls finish(channel, moments) in one lane.
inline constexpr unsigned kJoinEach = 4;
template <unsigned kThreads, typename Finish>
__device__ __forceinline__ void join_moments(const double* parts, const NormCut& cut, unsigned begin, unsigned end,
                                             unsigned first, unsigned last, const Finish& finish) {
  const unsigned lane = threadIdx.x % 32;
#pragma unroll 1
  for (unsigned channel = first + threadIdx.x / 32 * kJoinEach; channel < last; channel += kThreads / 32 * kJoinEach) {
    Moments own[kJoinEach];
    unsigned count = 0;
#pragma unroll 2
    for (unsigned part = begin + lane; part < end; part += 32) {
      const double* const from = parts + static_cast<long long>(part) * 2 * cut.channels + channel;
      const unsigned added = cut.part_size(part);
      if (added == 0) continue;  // the single part of an empty tensor
      const double share = static_cast<double>(added) / static_cast<double>(count + added);
#pragma unroll
      for (unsigned k = 0; k < kJoinEach; ++k)
        if (channel + k < last) merge(own[k], count, {__ldcg(from + k), __ldcg(from + cut.channels + k)}, share);
      count += added;
    }
    for (unsigned distance = 16; distance > 0; distance /= 2) {
      const unsigned added = __shfl_down_sync(kFullWarp, count, distance);
      const bool merges = lane < distance && added > 0;
      const double share = merges ? static_cast<double>(added) / static_cast<double>(count + added) : 0;
#pragma unroll
      for (unsigned k = 0; k < kJoinEach; ++k) {
        const Moments other{__shfl_down_sync(kFullWarp, own[k].mean, distance),
                            __shfl_down_sync(kFullWarp, own[k].squares, distance)};
        if (merges) merge(own[k], count, other, share);
      }
      if (merges) count += added;
    }
    if (lane == 0)
#pragma unroll
      for (unsigned k = 0; k < kJoinEach; ++k)
        if (channel + k < last) finish(channel + k, own[k]);
  }
}

// More than kJoinAtOnce parts are joined in groups of kJoinGroup first.
inline constexpr unsigned kJoinAtOnce = 256, kJoinGroup = 64;
__host__ __device__ inline unsigned join_groups(const NormCut& cut) {
  return cut.parts <= kJoinAtOnce ? 0 : (cut.parts + kJoinGroup - 1) / kJoinGroup;
}

// Parts written by separate blocks, each for one column (a range of channels).
struct PartsOfMoments {
  double *parts, *groups;  // layout as in join_moments(); groups: room for join_groups(cut) parts
  unsigned* counters;      // per column: first for the whole, then for each group; all 0
};

// Called by the block that has written `part` for the channels [first, last), which are
// column `column` of `columns`. The last block of a column joins its parts.
template <unsigned kThreads>
__device__ __forceinline__ void end_part(const PartsOfMoments& of, const NormCut& cut, const MomentsEnd& to,
                                         unsigned part, unsigned column, unsigned columns, unsigned first,
                                         unsigned last) {
  const auto finish = [&](unsigned channel, const Moments& joined) { to.write(cut, channel, joined); };
  const unsigned groups = join_groups(cut);
  if (groups == 0) {
    if (is_last_block(of.counters + column, cut.parts))
      join_moments<kThreads>(of.parts, cut, 0, cut.parts, first, last, finish);
    return;
  }
  const unsigned group = part / kJoinGroup, begin = group * kJoinGroup, end = min(begin + kJoinGroup, cut.parts);
  if (!is_last_block(of.counters + (1 + group) * columns + column, end - begin)) return;
  double* const joined = of.groups + static_cast<long long>(group) * 2 * cut.channels;
  join_moments<kThreads>(of.parts, cut, begin, end, first, last, [&](unsigned channel, const Moments& own) {
    joined[channel] = own.mean;
    joined[cut.channels + channel] = own.squares < 0 ? 0 : own.squares;
  });
  if (!is_last_block(of.counters + column, groups)) return;
  NormCut grouped = cut;
  grouped.part_rows = cut.part_rows * kJoinGroup;
  join_moments<kThreads>(of.groups, grouped, 0, groups, first, last, finish);
}

// Last steps of BatchNormBackwardSums: writes its results, and adds the partial sums of fused convolutions.

// The op's stats argument and its results.
struct SumsEnd {
  const double* stats;
  double* sums;
  float *dweight, *dbias;  // may be null

  __device__ void write(unsigned channels, unsigned channel, double sum, double product) const {
    const ChannelStats own = channel_stats(stats, channels, channel);
    product = (product + (static_cast<float>(own.mean) - own.mean) * sum) * own.inv_std;
    sums[channel] = sum;
    sums[channels + channel] = product;
    if (dbias) dbias[channel] = static_cast<float>(sum);
    if (dweight) dweight[channel] = static_cast<float>(product);
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
