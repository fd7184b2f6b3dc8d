// Batch, group and layer normalisation. Batch normalisation, over N,H,W of each channel, is split into several ops so
// that the statistics can cover one shard or several (docs/decisions/0013).
//
// Moments of one part of a batch are 1 + 2C doubles: the count, the mean of each channel, and each channel's sum of
// squared deviations from its mean. All are zero for an empty part. Stats are 1 + 2C doubles: the count, the mean of
// each channel, and each channel's 1/sqrt(biased variance + eps).
#pragma once

#include <optional>
#include <vector>

#include "kernels/op.h"

namespace dp::kernels {

inline void check_channels(const OpCheck& op, std::int64_t channels, int parts = 1, double eps = 0) {
  op.at_least_one(channels, "channel");
  op.at_least_one(parts, "part");
  op.require(eps >= 0, "eps must not be negative");
}
inline void check_norm(const OpCheck& op, const TensorDesc& x) {
  op.one_type({&x});
  op.rank({&x}, 4);
  check_channels(op, x.shape[1]);
}

// Computes the moments of x; with `eps` also the stats of this part alone.
struct BatchNormMoments {
  static constexpr const char* kName = "batch_norm_moments";
  DP_ARGS(x, moments, stats);  // stats: null without eps
  TensorDesc x;
  std::optional<double> eps{};

  void check(const OpCheck& op) const {
    check_norm(op, x);
    check_channels(op, x.shape[1], 1, eps.value_or(0));
  }
};
DP_ON_EVERY_BACKEND(BatchNormMoments);

// Merges the moments of `parts` parts (contiguous, 1 + 2C doubles each) in order into stats, by the pairwise formula of
// Chan et al.
struct BatchNormMerge {
  static constexpr const char* kName = "batch_norm_merge";
  DP_ARGS(moments, stats);
  std::int64_t channels = 0;
  int parts = 1;
  double eps = 1e-5;

  void check(const OpCheck& op) const { check_channels(op, channels, parts, eps); }
};
DP_ON_EVERY_BACKEND(BatchNormMerge);

// Updates the running mean and variance of several normalisations, each from the moments of `parts` parts, merged as
// above. r = (1 - momentum) * r + momentum * batch value. The batch variance is the unbiased one; it is 0 if the count
// is 1. Running mean and variance are C elements each of the compute type, updated in place. A channel stays unchanged
// if the count is 0, or if its mean or sum of squares is not finite.
struct BatchNormTrack {
  static constexpr const char* kName = "batch_norm_track";
  DP_ARGS(moments, running);
  struct Norm {
    std::int64_t channels = 0;
    double momentum = 0.1;
    std::int64_t moments = 0;             // offset in `moments`, in doubles
    std::int64_t mean = 0, variance = 0;  // offsets in `running`, in elements
  };
  std::vector<Norm> norms;
  int parts = 1;

  void check(const OpCheck& op) const {
    for (const Norm& one : norms) {
      check_channels(op, one.channels, parts);
      op.require(one.momentum >= 0 && one.momentum <= 1, "the momentum must be in [0, 1]");
    }
  }
};
DP_ON_EVERY_BACKEND(BatchNormTrack);

// Stats from the running mean and variance, for evaluation. The count is 0.
struct BatchNormRunning {
  static constexpr const char* kName = "batch_norm_running";
  DP_ARGS(mean, variance, stats);
  std::int64_t channels = 0;
  double eps = 1e-5;

  void check(const OpCheck& op) const { check_channels(op, channels, 1, eps); }
};
DP_ON_EVERY_BACKEND(BatchNormRunning);

// Folds a normalisation by its running mean and variance into the convolution before it, for evaluation. For each
// output channel, with scale = weight / sqrt(variance + eps): folded_w = w * scale, folded_b = bias + (b - mean) *
// scale. folded_w has w's type and layout.
struct BatchNormFold {
  static constexpr const char* kName = "batch_norm_fold";
  DP_ARGS(w, b, weight, bias, mean, variance, folded_w, folded_b);  // b: may be null
  TensorDesc w;
  double eps = 1e-5;

  void check(const OpCheck& op) const {
    op.one_type({&w});
    op.rank({&w}, 4);
    check_channels(op, w.shape[0], 1, eps);
  }
};
DP_ON_EVERY_BACKEND(BatchNormFold);

// y = (x - mean) * inv_std * weight + bias, plus the addend if `add`, then max(0, y) if relu. x, addend and y have x's
// layout. In these ops a null weight is 1, a null bias is 0.
struct BatchNormForward {
  static constexpr const char* kName = "batch_norm_forward";
  DP_ARGS(x, stats, weight, bias, addend, y);  // addend: null without add
  TensorDesc x;
  bool relu = false;
  bool add = false;

  void check(const OpCheck& op) const { check_norm(op, x); }
};
DP_ON_EVERY_BACKEND(BatchNormForward);

// Computes dz, the gradient of the ReLU's input: dz = y > 0 ? dy + dy2 : 0; without relu dz = dy + dy2. A null dy2
// counts as zero. Also sums dz and dz * xhat over N,H,W, where xhat = (x - mean) * inv_std. `sums` is 2C doubles, first
// the sums of dz. dbias and dweight are the same sums in the compute type, or null. dz is written unless it is null,
// and may alias dy or dy2. y is null without relu. All tensors have x's layout.
struct BatchNormBackwardSums {
  static constexpr const char* kName = "batch_norm_backward_sums";
  DP_ARGS(dy, dy2, x, y, stats, sums, dweight, dbias, dz);  // dy2, y, dz: may be null
  TensorDesc x;
  bool relu = false;

  void check(const OpCheck& op) const { check_norm(op, x); }
};
DP_ON_EVERY_BACKEND(BatchNormBackwardSums);

// dx = weight * inv_std * (dz - S1 / count - xhat * S2 / count). S1 and S2 are the sums of `parts` parts (2C doubles
// each), added in order. count is that of stats. `relu`: dz is dy, and the op computes dz from it and y as
// BatchNormBackwardSums does without dy2. May run in place on dz.
struct BatchNormBackward {
  static constexpr const char* kName = "batch_norm_backward";
  DP_ARGS(dz, x, y, stats, weight, sums, dx);  // y: null without relu
  TensorDesc x;
  int parts = 1;
  bool relu = false;

  void check(const OpCheck& op) const {
    check_norm(op, x);
    check_channels(op, x.shape[1], parts);
  }
};
DP_ON_EVERY_BACKEND(BatchNormBackward);

// Group normalisation. The channels of each sample are split into `groups` of equal size; each group is normalised over
// its channels, H and W. With groups = kEachPixel the op is layer normalisation: each pixel is normalised over its
// channels. The word "group" below then means a pixel.
inline constexpr std::int64_t kEachPixel = 0;

inline void check_groups(const OpCheck& op, const TensorDesc& x, std::int64_t groups) {
  check_norm(op, x);
  op.require(groups == kEachPixel || (groups >= 1 && x.shape[1] % groups == 0),
             "the groups do not divide the channels");
}
// Groups of a sample.
inline std::int64_t groups_of(const Shape& x, std::int64_t groups) {
  return groups == kEachPixel ? x[2] * x[3] : groups;
}

// y = (x - mean) * inv_std, times weight plus bias if affine, then max(0, y) if relu. `stats` are the mean and inv_std
// = 1/sqrt(biased variance + eps) of each sample and group: 2 * N * groups doubles. y has x's layout.
struct GroupNormForward {
  static constexpr const char* kName = "group_norm_forward";
  static constexpr int kActivations = 2;  // tensors of x's size that the op reads or writes
  DP_ARGS(x, weight, bias, y, stats);     // weight, bias: null unless affine
  TensorDesc x;
  std::int64_t groups = 1;
  double eps = 1e-5;
  bool affine = true;
  bool relu = false;

  void check(const OpCheck& op) const {
    check_groups(op, x, groups);
    op.require(eps >= 0, "eps must not be negative");
  }
};
DP_ON_EVERY_BACKEND(GroupNormForward);

// dx = inv_std * (g - S1 / count - xhat * S2 / count), where g = dy * weight, xhat = (x - mean) * inv_std; S1 and S2
// are the sums of g and g * xhat over the `count` values of the group. dweight and dbias are the sums of dy * xhat and
// dy over N,H,W. dy and dx have x's layout; dx may alias dy.
struct GroupNormBackward {
  static constexpr const char* kName = "group_norm_backward";
  static constexpr int kActivations = 3;
  DP_ARGS(dy, x, weight, stats, dx, dweight, dbias);  // weight, dweight, dbias: null unless affine
  TensorDesc x;
  std::int64_t groups = 1;
  bool affine = true;

  void check(const OpCheck& op) const { check_groups(op, x, groups); }
};
DP_ON_EVERY_BACKEND(GroupNormBackward);

}  // namespace dp::kernels
