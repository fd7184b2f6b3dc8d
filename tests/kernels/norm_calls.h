// Batch normalisation and its parts, from host values to host values.
#pragma once

#include <span>

#include "kernels/op_rig.h"

namespace dp::test {

inline constexpr double kNormTolerance = 2e-6;  // a few float32 roundings per element; sums are longer but in double

using Doubles = std::vector<double>;  // moments, stats, sums: in the layout of kernels/ops.h

// With `eps` it also returns the stats of this part, in `stats_of_part`.
Doubles batch_norm_moments(OpRig& rig, const HostTensor& x, const kernels::Layout& layout,
                           std::optional<double> eps = {}, Doubles* stats_of_part = nullptr);

struct NormMerge {
  std::int64_t channels = 1;
  int parts = 1;
  double eps = 1e-5, momentum = 0.1;
};
// Updates `mean` and `variance` unless they are null. Returns no stats if `stats` is false.
Doubles batch_norm_merge(OpRig& rig, const NormMerge& merge, const Doubles& moments, HostTensor* mean = nullptr,
                         HostTensor* variance = nullptr, bool stats = true);
// One of several normalisations: the moments of its parts, and its running values, which are updated.
struct NormRunning {
  double momentum;
  Doubles moments;
  HostTensor *mean, *variance;
};
void batch_norm_track(OpRig& rig, std::span<const NormRunning> norms, int parts);
Doubles batch_norm_running(OpRig& rig, const HostTensor& mean, const HostTensor& variance, double eps = 1e-5);

// In these functions an empty weight, with an empty bias, stands for a normalisation without them.
HostTensor batch_norm_forward(OpRig& rig, const HostTensor& x, const Doubles& stats, const HostTensor& weight,
                              const HostTensor& bias, const HostTensor* addend, bool relu,
                              const kernels::Layout& layout);

// The destination of dz.
enum class Dz { nowhere, own, over_dy, over_dy2 };
struct NormSums {
  Doubles sums;
  HostTensor dweight, dbias, dz;  // dz is empty for Dz::nowhere, the others unless affine
};
// With ReLU if `y` is given. `dy2` may be null.
NormSums batch_norm_backward_sums(OpRig& rig, const HostTensor& dy, const HostTensor* dy2, const HostTensor& x,
                                  const HostTensor* y, const Doubles& stats, Dz dz, const kernels::Layout& layout,
                                  bool affine = true);
// `sums`: of one or several parts. With ReLU if `y` is given.
HostTensor batch_norm_backward(OpRig& rig, const HostTensor& dz, const HostTensor& x, const HostTensor* y,
                               const Doubles& stats, const HostTensor& weight, const Doubles& sums, bool in_place,
                               const kernels::Layout& layout);

// A batch normalisation with optional ReLU and addend, by definition in double.
struct NormCase {
  HostTensor x, weight, bias, dy;
  std::optional<HostTensor> addend, dy2;
  bool relu = false;
  double eps = 1e-5;
};
struct NormResult {
  Doubles mean, variance;  // biased
  HostTensor y, dz, dx, dweight, dbias;
};
NormResult naive_batch_norm(const NormCase& norm);
// Runs the ops with the batch in parts of these sizes. Does not download `stats`. `preferred`: the device's preferred
// layout; else row-major.
NormResult batch_norm(OpRig& rig, const NormCase& norm, const std::vector<std::int64_t>& parts, bool preferred);

// A group normalisation with optional ReLU, by its ops. `preferred`: as above.
struct GroupNormCase {
  HostTensor x, weight, bias, dy;  // weight, bias: unless `affine` is false. dy: before the ReLU
  std::int64_t groups = 1;
  bool affine = true, relu = false;
  double eps = 1e-5;
};
struct GroupNormResult {
  Doubles stats;
  HostTensor y, dx, dweight, dbias;  // dweight, dbias: empty unless affine
};
GroupNormResult group_norm(OpRig& rig, const GroupNormCase& norm, bool preferred, bool in_place = false);

NormCase random_norm(const Shape& shape, bool relu, bool add, bool second, Random& random);
HostTensor rows(const HostTensor& tensor, std::int64_t begin, std::int64_t end);  // rows of the first dimension

}  // namespace dp::test
