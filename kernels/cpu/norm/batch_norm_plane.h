// Batch normalisation of one plane (one sample, one block of channels), in any layout. Sums are taken in float over short runs
// of pixels and added up in double.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/cpu/cpu_layout.h"
#include "kernels/cpu/parallel.h"

namespace dp::kernels {

struct NormPlane {
  std::int64_t pixels = 0, block = 1;
};

// Adds `count` values of each of `channels` channels, by their means and sums of squared deviations, to those of `before`
// values; where one of the two is empty its numbers are not read.
void merge_moments(std::int64_t channels, double before, double* mean, double* squares, double count,
                   const double* part_mean, const double* part_squares);

// The same for a plane's pixels.
void add_moments(const NormPlane& plane, const float* x, double before, double* mean, double* squares);

// BatchNormMerge's result from merged moments.
inline void write_stats(std::int64_t channels, double count, const double* mean, const double* squares, double eps,
                        double* stats) {
  stats[0] = count;
  const double divisor = count > 0 ? count : 1;
  for (std::int64_t c = 0; c < channels; ++c) {
    stats[1 + c] = mean[c];
    stats[1 + channels + c] = 1 / std::sqrt(squares[c] / divisor + eps);
  }
}

// y = (x - shift) * scale + offset, plus addend unless null, then max(0, y) when relu.
struct NormCoefficients {  // of a plane: `block` numbers each
  const float *shift, *scale, *offset;
};
void normalise(const NormPlane& plane, bool relu, const NormCoefficients& coefficients, const float* x,
               const float* addend, float* y);

// Adds to sums those of dz and to products those of dz * (x - shift), dz = y > 0 ? dy + dy2 : 0; dy2, y and dz may be null.
struct NormGradient {
  const float *dy, *dy2, *x, *y;
  float* dz;
};
void add_gradient_sums(const NormPlane& plane, const NormGradient& at, const float* shift, double* sums,
                       double* products);

// dx = dz * scale + (x - shift) * slope + offset, dz = y > 0 ? dy : 0; y may be null.
struct NormGradientCoefficients {
  const float *shift, *scale, *slope, *offset;
};
void normalise_gradient(const NormPlane& plane, const NormGradientCoefficients& coefficients, const float* dy,
                        const float* x, const float* y, float* dx);

// The samples in groups whose sums are taken apart and merged in order. The groups depend on the batch alone: sums have the
// same bits on any number of threads.
struct SampleGroups {
  std::int64_t samples = 0, count = 0;

  explicit SampleGroups(std::int64_t n) : samples(n), count(std::min<std::int64_t>(n, 16)) {}
  std::int64_t begin(std::int64_t group) const { return samples * group / count; }
};

// body(group, sample, block) for every plane; those of one group and block by one thread, in order of the samples.
template <typename Body>
void for_grouped_planes(int threads, const SampleGroups& groups, std::int64_t blocks, const Body& body) {
  parallel_ranges(threads, groups.count * blocks, 1, [&](std::int64_t begin, std::int64_t end) {
    while (begin < end) {  // along the memory: all of a thread's blocks of one sample, then the next sample
      const std::int64_t group = begin / blocks, first = begin % blocks, last = std::min(blocks, first + end - begin);
      for (std::int64_t n = groups.begin(group); n < groups.begin(group + 1); ++n)
        for (std::int64_t block = first; block < last; ++block) body(group, n, block);
      begin += last - first;
    }
  });
}

}  // namespace dp::kernels
