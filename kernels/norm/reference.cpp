#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/device/reference/reference_op.h"
#include "kernels/op_args.h"

namespace dp::kernels::reference {
namespace {

// Base of the ops on a tensor (N,C,H,W).
template <typename Desc>
class NormOp : public ReferenceOp<Desc> {
 protected:
  explicit NormOp(const Desc& desc) : ReferenceOp<Desc>(desc, {desc.x}) {
    const Shape& x = this->shape(0);
    channels_ = x[1];
    pixels_ = x[2] * x[3];
  }

  // Calls visit(index) for each element of one channel.
  template <typename Visit>
  void each_of(std::int64_t channel, const Visit& visit) const {
    for (std::int64_t n = 0; n < this->shape(0)[0]; ++n)
      for (std::int64_t pixel = 0; pixel < pixels_; ++pixel) visit((n * channels_ + channel) * pixels_ + pixel);
  }
  double count() const { return static_cast<double>(this->shape(0)[0] * pixels_); }

  std::int64_t channels_, pixels_;
};

// Moments of all parts by definition: the mean of all values, and the squared deviations from that mean.
struct Merged {
  double count = 0;
  std::vector<double> mean, squares;  // per channel
};
Merged merged(const double* moments, std::int64_t channels, int parts) {
  const std::int64_t stride = 1 + 2 * channels;
  Merged all;
  for (int part = 0; part < parts; ++part) all.count += moments[part * stride];
  for (std::int64_t c = 0; c < channels; ++c) {
    double mean = 0, squares = 0;
    for (int part = 0; part < parts && all.count > 0; ++part)
      mean += moments[part * stride] / all.count * moments[part * stride + 1 + c];
    for (int part = 0; part < parts; ++part) {
      const double* own = moments + part * stride;
      const double away = own[0] > 0 ? own[1 + c] - mean : 0;
      squares += own[1 + channels + c] + own[0] * away * away;
    }
    all.mean.push_back(mean), all.squares.push_back(squares);
  }
  return all;
}
void write_stats(const Merged& all, double eps, double* stats) {
  stats[0] = all.count;
  for (std::size_t c = 0; c < all.mean.size(); ++c) {
    stats[1 + c] = all.mean[c];
    stats[1 + all.mean.size() + c] = 1 / std::sqrt((all.count > 0 ? all.squares[c] / all.count : 0) + eps);
  }
}

class MomentsOp final : public NormOp<BatchNormMoments> {
 public:
  explicit MomentsOp(const BatchNormMoments& desc) : NormOp(desc) {}

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<BatchNormMoments>(pointers);
    const double* x = f64(args.x);
    double* moments = f64(args.moments);
    moments[0] = count();
    for (std::int64_t c = 0; c < channels_; ++c) {
      double mean = 0, squares = 0;
      each_of(c, [&](std::int64_t i) { mean += x[i] / count(); });
      each_of(c, [&](std::int64_t i) { squares += (x[i] - mean) * (x[i] - mean); });
      moments[1 + c] = mean;
      moments[1 + channels_ + c] = squares;
    }
    if (desc_.eps) write_stats(merged(moments, channels_, 1), *desc_.eps, f64(args.stats));
  }
};

class MergeOp final : public ReferenceOp<BatchNormMerge> {
 public:
  explicit MergeOp(const BatchNormMerge& desc) : ReferenceOp(desc, {}) {}

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<BatchNormMerge>(pointers);
    write_stats(merged(f64(args.moments), desc_.channels, desc_.parts), desc_.eps, f64(args.stats));
  }
};

class TrackOp final : public ReferenceOp<BatchNormTrack> {
 public:
  explicit TrackOp(const BatchNormTrack& desc) : ReferenceOp(desc, {}) {}

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<BatchNormTrack>(pointers);
    for (const BatchNormTrack::Norm& norm : desc_.norms) {
      const Merged all = merged(f64(args.moments) + norm.moments, norm.channels, desc_.parts);
      double *mean = f64(args.running) + norm.mean, *variance = f64(args.running) + norm.variance;
      for (std::size_t c = 0; c < all.mean.size(); ++c) {
        if (!(all.count > 0) || !std::isfinite(all.mean[c]) || !std::isfinite(all.squares[c])) continue;
        const double unbiased = all.count > 1 ? all.squares[c] / (all.count - 1) : 0;
        mean[c] = (1 - norm.momentum) * mean[c] + norm.momentum * all.mean[c];
        variance[c] = (1 - norm.momentum) * variance[c] + norm.momentum * unbiased;
      }
    }
  }
};

class RunningOp final : public ReferenceOp<BatchNormRunning> {
 public:
  explicit RunningOp(const BatchNormRunning& desc) : ReferenceOp(desc, {}) {}

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<BatchNormRunning>(pointers);
    const double *mean = f64(args.mean), *variance = f64(args.variance);
    double* stats = f64(args.stats);
    stats[0] = 0;
    for (std::int64_t c = 0; c < desc_.channels; ++c) {
      stats[1 + c] = mean[c];
      stats[1 + desc_.channels + c] = 1 / std::sqrt(variance[c] + desc_.eps);
    }
  }
};

class FoldOp final : public ReferenceOp<BatchNormFold> {
 public:
  explicit FoldOp(const BatchNormFold& desc) : ReferenceOp(desc, {desc.w}) {}

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<BatchNormFold>(pointers);
    const double *w = f64(args.w), *b = f64(args.b), *weight = f64(args.weight), *bias = f64(args.bias),
                 *mean = f64(args.mean), *variance = f64(args.variance);
    double *folded_w = f64(args.folded_w), *folded_b = f64(args.folded_b);
    const std::int64_t channels = shape(0)[0], each = shape(0).without_first().numel();
    for (std::int64_t c = 0; c < channels; ++c) {
      const double scale = weight[c] / std::sqrt(variance[c] + desc_.eps);
      folded_b[c] = bias[c] + ((b != nullptr ? b[c] : 0.0) - mean[c]) * scale;
      for (std::int64_t i = c * each; i < (c + 1) * each; ++i) folded_w[i] = rounded(w[i] * scale, desc_.w.type);
    }
  }
};

class ForwardOp final : public NormOp<BatchNormForward> {
 public:
  explicit ForwardOp(const BatchNormForward& desc) : NormOp(desc) {}

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<BatchNormForward>(pointers);
    const double *x = f64(args.x), *stats = f64(args.stats), *weight = f64(args.weight), *bias = f64(args.bias);
    const double* addend = f64(args.addend);
    double* y = f64(args.y);
    for (std::int64_t c = 0; c < channels_; ++c)
      each_of(c, [&](std::int64_t i) {
        double value = (x[i] - stats[1 + c]) * stats[1 + channels_ + c];
        if (weight) value = value * weight[c] + bias[c];
        if (desc_.add) value += addend[i];
        y[i] = desc_.relu && value < 0 ? 0 : value;
      });
  }
};

class BackwardSumsOp final : public NormOp<BatchNormBackwardSums> {
 public:
  explicit BackwardSumsOp(const BatchNormBackwardSums& desc) : NormOp(desc) {}

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<BatchNormBackwardSums>(pointers);
    const double *dy = f64(args.dy), *dy2 = f64(args.dy2), *x = f64(args.x), *y = f64(args.y), *stats = f64(args.stats);
    double *sums = f64(args.sums), *dweight = f64(args.dweight), *dbias = f64(args.dbias), *dz = f64(args.dz);
    for (std::int64_t c = 0; c < channels_; ++c) {
      double sum = 0, product = 0;
      each_of(c, [&](std::int64_t i) {
        double gradient = dy2 ? dy[i] + dy2[i] : dy[i];
        if (desc_.relu && !(y[i] > 0)) gradient = 0;
        sum += gradient;
        product += gradient * (x[i] - stats[1 + c]) * stats[1 + channels_ + c];
        if (dz) dz[i] = gradient;
      });
      sums[c] = sum, sums[channels_ + c] = product;
      if (dweight) dbias[c] = sum, dweight[c] = product;
    }
  }
};

class BackwardOp final : public NormOp<BatchNormBackward> {
 public:
  explicit BackwardOp(const BatchNormBackward& desc) : NormOp(desc) {}

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<BatchNormBackward>(pointers);
    const double *dy = f64(args.dz), *x = f64(args.x), *y = f64(args.y), *stats = f64(args.stats);
    const double *weight = f64(args.weight), *sums = f64(args.sums);
    double* dx = f64(args.dx);
    for (std::int64_t c = 0; c < channels_; ++c) {
      double sum = 0, product = 0;
      for (int part = 0; part < desc_.parts; ++part) {
        sum += sums[part * 2 * channels_ + c];
        product += sums[part * 2 * channels_ + channels_ + c];
      }
      const double inv_std = stats[1 + channels_ + c], batch = stats[0];
      each_of(c, [&](std::int64_t i) {
        const double gradient = desc_.relu && !(y[i] > 0) ? 0 : dy[i];
        const double normalised = (x[i] - stats[1 + c]) * inv_std;
        const double through_stats = batch > 0 ? sum / batch + normalised * product / batch : 0;
        dx[i] = (weight ? weight[c] : 1) * inv_std * (gradient - through_stats);
      });
    }
  }
};

// Base of the ops that normalise groups of channels, or pixels. A group of channels is contiguous.
template <typename Desc>
class GroupOp : public NormOp<Desc> {
 protected:
  explicit GroupOp(const Desc& desc)
      : NormOp<Desc>(desc),
        pixelwise_(desc.groups == kEachPixel),
        size_(pixelwise_ ? this->channels_ : this->channels_ / desc.groups * this->pixels_) {}

  // Calls visit(group, elements) for each group of each sample; elements(body) calls body for each element of the
  // group. Groups are counted over all samples.
  template <typename Visit>
  void each_group(const Visit& visit) const {
    const std::int64_t groups = groups_of(this->shape(0), this->desc_.groups), step = pixelwise_ ? this->pixels_ : 1;
    for (std::int64_t i = 0; i < this->shape(0)[0] * groups; ++i) {
      const std::int64_t sample = i / groups, group = i % groups;
      const std::int64_t first = sample * this->channels_ * this->pixels_ + group * (pixelwise_ ? 1 : size_);
      visit(i, [&](const auto& body) {
        for (std::int64_t k = 0; k < size_; ++k) body(first + k * step);
      });
    }
  }
  std::size_t channel_of(std::int64_t element) const {
    return static_cast<std::size_t>(element / this->pixels_ % this->channels_);
  }

  bool pixelwise_;
  std::int64_t size_;  // of a group
};

class GroupForwardOp final : public GroupOp<GroupNormForward> {
 public:
  explicit GroupForwardOp(const GroupNormForward& desc) : GroupOp(desc) {}

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<GroupNormForward>(pointers);
    const double *x = f64(args.x), *weight = f64(args.weight), *bias = f64(args.bias);
    double *y = f64(args.y), *stats = f64(args.stats);
    each_group([&](std::int64_t group, const auto& elements) {
      double mean = 0, variance = 0;
      elements([&](std::int64_t i) { mean += x[i] / static_cast<double>(size_); });
      elements([&](std::int64_t i) { variance += (x[i] - mean) * (x[i] - mean) / static_cast<double>(size_); });
      const double inv_std = 1 / std::sqrt(variance + desc_.eps);
      stats[2 * group] = mean, stats[2 * group + 1] = inv_std;
      elements([&](std::int64_t i) {
        double value = (x[i] - mean) * inv_std;
        if (desc_.affine) value = value * weight[channel_of(i)] + bias[channel_of(i)];
        y[i] = desc_.relu && value < 0 ? 0 : value;
      });
    });
  }
};

class GroupBackwardOp final : public GroupOp<GroupNormBackward> {
 public:
  explicit GroupBackwardOp(const GroupNormBackward& desc) : GroupOp(desc) {}

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<GroupNormBackward>(pointers);
    const double *dy = f64(args.dy), *x = f64(args.x), *weight = f64(args.weight), *stats = f64(args.stats);
    double *dx = f64(args.dx), *dweight = f64(args.dweight), *dbias = f64(args.dbias);
    if (desc_.affine) std::fill_n(dweight, channels_, 0.0), std::fill_n(dbias, channels_, 0.0);
    each_group([&](std::int64_t group, const auto& elements) {
      const double mean = stats[2 * group], inv_std = stats[2 * group + 1];
      const auto normalised = [&](std::int64_t i) { return (x[i] - mean) * inv_std; };
      const auto gradient = [&](std::int64_t i) { return desc_.affine ? dy[i] * weight[channel_of(i)] : dy[i]; };
      double sum = 0, product = 0;
      elements([&](std::int64_t i) {
        sum += gradient(i);
        product += gradient(i) * normalised(i);
        if (!desc_.affine) return;
        dbias[channel_of(i)] += dy[i];
        dweight[channel_of(i)] += dy[i] * normalised(i);
      });
      const auto count = static_cast<double>(size_);
      elements(
          [&](std::int64_t i) { dx[i] = inv_std * (gradient(i) - sum / count - normalised(i) * product / count); });
    });
  }
};

}  // namespace

std::unique_ptr<HostOp> make(const BatchNormMoments& desc) { return std::make_unique<MomentsOp>(desc); }
std::unique_ptr<HostOp> make(const BatchNormMerge& desc) { return std::make_unique<MergeOp>(desc); }
std::unique_ptr<HostOp> make(const BatchNormTrack& desc) { return std::make_unique<TrackOp>(desc); }
std::unique_ptr<HostOp> make(const BatchNormRunning& desc) { return std::make_unique<RunningOp>(desc); }
std::unique_ptr<HostOp> make(const BatchNormFold& desc) { return std::make_unique<FoldOp>(desc); }
std::unique_ptr<HostOp> make(const BatchNormForward& desc) { return std::make_unique<ForwardOp>(desc); }
std::unique_ptr<HostOp> make(const BatchNormBackwardSums& desc) { return std::make_unique<BackwardSumsOp>(desc); }
std::unique_ptr<HostOp> make(const BatchNormBackward& desc) { return std::make_unique<BackwardOp>(desc); }
std::unique_ptr<HostOp> make(const GroupNormForward& desc) { return std::make_unique<GroupForwardOp>(desc); }
std::unique_ptr<HostOp> make(const GroupNormBackward& desc) { return std::make_unique<GroupBackwardOp>(desc); }

}  // namespace dp::kernels::reference
