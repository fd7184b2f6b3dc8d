// Batch normalisation of one plane (one sample, one block of channels), in any layout. Sums are in float over short
// runs of pixels; the runs are added in double. T is the type of the activations: float or BFloat16.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/device/cpu/cpu_layout.h"
#include "kernels/device/cpu/parallel.h"

namespace dp::kernels {

struct NormPlane {
  std::int64_t pixels = 0, block = 1;
};

// Merges the moments of `count` values per channel (part_mean, part_squares) into those of `before` values (mean,
// squares). `squares` are sums of squared deviations. The moments of an empty side are not read.
void merge_moments(std::int64_t channels, double before, double* mean, double* squares, double count,
                   const double* part_mean, const double* part_squares);

// Merges the moments of a plane's pixels into mean and squares.
template <typename T>
void add_moments(const NormPlane& plane, const T* x, double before, double* mean, double* squares);

// Writes the stats of BatchNormMerge from merged moments.
inline void write_stats(std::int64_t channels, double count, const double* mean, const double* squares, double eps,
                        double* stats) {
  stats[0] = count;
  const double divisor = count > 0 ? count : 1;
  for (std::int64_t c = 0; c < channels; ++c) {
    stats[1 + c] = mean[c];
    stats[1 + channels + c] = 1 / std::sqrt(squares[c] / divisor + eps);
  }
}

// y = (x - shift) * scale + offset, plus addend unless null, then max(0, y) if relu.
struct NormCoefficients {  // for one plane: `block` values each
  const float *shift, *scale, *offset;
};
template <typename T>
void normalise(const NormPlane& plane, bool relu, const NormCoefficients& coefficients, const T* x, const T* addend,
               T* y);

// Per channel: sums += dz and products += dz * (x - shift), where dz = y > 0 ? dy + dy2 : 0. dy2, y and dz may be null.
template <typename T>
struct NormGradient {
  const T *dy, *dy2, *x, *y;
  T* dz;
};
template <typename T>
void add_gradient_sums(const NormPlane& plane, const NormGradient<T>& at, const float* shift, double* sums,
                       double* products);

// dx = dz * scale + (x - shift) * slope + offset, where dz = y > 0 ? dy : 0. y may be null.
struct NormGradientCoefficients {
  const float *shift, *scale, *slope, *offset;
};
template <typename T>
void normalise_gradient(const NormPlane& plane, const NormGradientCoefficients& coefficients, const T* dy, const T* x,
                        const T* y, T* dx);

// Groups of samples. Each group is reduced separately, then the groups are merged in order. The groups depend only on
// the batch size, so that sums have the same bits for any number of threads.
struct SampleGroups {
  std::int64_t samples = 0, count = 0;

  explicit SampleGroups(std::int64_t n) : samples(n), count(std::min<std::int64_t>(n, 16)) {}
  std::int64_t begin(std::int64_t group) const { return samples * group / count; }
};

// Calls body(group, sample, block) for every plane. One thread handles all planes of a group and block, in sample
// order.
template <typename Body>
void for_grouped_planes(int threads, const SampleGroups& groups, std::int64_t blocks, const Body& body) {
  parallel_ranges(threads, groups.count * blocks, 1, [&](std::int64_t begin, std::int64_t end) {
    while (begin < end) {  // in memory order: all blocks of this thread in one sample, then the next sample
      const std::int64_t group = begin / blocks, first = begin % blocks, last = std::min(blocks, first + end - begin);
      for (std::int64_t n = groups.begin(group); n < groups.begin(group + 1); ++n)
        for (std::int64_t block = first; block < last; ++block) body(group, n, block);
      begin += last - first;
    }
  });
}

}  // namespace dp::kernels
