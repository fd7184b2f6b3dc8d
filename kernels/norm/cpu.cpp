// Batch normalisation on CPUs: forward, backward, moments, gradient sums, and folding into convolutions.
#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/device/cpu/bfloat16.h"
#include "kernels/device/cpu/cpu_layout.h"
#include "kernels/device/cpu/cpu_op.h"
#include "kernels/device/cpu/dnnl_op.h"
#include "kernels/device/cpu/parallel.h"
#include "kernels/norm/cpu_plane.h"
#include "kernels/op_args.h"

namespace dp::kernels {
namespace {

// BatchNormForward and BatchNormBackward: a few coefficients per channel, then one pass over memory. The pass subtracts
// the mean rounded to float from x; the offset corrects the rounding. Hence a large mean loses no precision.

class NormOp : public HostOp {
 public:
  NormOp(const TensorDesc& x, int coefficients, const CpuOpOptions& options)
      : view_(view_of(resolved_plain(x))), plane_{view_.h * view_.w, view_.block} {
    tensors_ = {resolved_plain(x)};
    channels_ = view_.blocks * view_.block;
    workspace_bytes_ = static_cast<std::size_t>(coefficients * channels_) * sizeof(float);
    threads_ = threads_for(options.threads, static_cast<std::int64_t>(tensors_[0].layout.bytes) * 2);
  }
  std::size_t workspace_bytes() const override { return workspace_bytes_; }
  std::string implementation() const override { return "own:simd"; }

 protected:
  // Calls body(first element, first channel) for each plane.
  template <typename Body>
  void for_planes(const Body& body) const {
    parallel_ranges(threads_, view_.n * view_.blocks, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i)
        body(view_.at(i / view_.blocks, i % view_.blocks), i % view_.blocks * view_.block);
    });
  }

  ActivationView view_;
  NormPlane plane_;
  std::int64_t channels_;  // padding included: its coefficients are zero
  int threads_ = 1;

 private:
  std::size_t workspace_bytes_;
};

class ForwardOp : public NormOp {
 public:
  ForwardOp(const BatchNormForward& d, const CpuOpOptions& options)
      : NormOp(d.x, 3, options), relu_(d.relu), add_(d.add) {}

  void execute(std::span<void* const> pointers, void* workspace) override {
    const auto args = args_of<BatchNormForward>(pointers);
    const double* stats = static_cast<const double*>(args.stats);
    const float *weight = static_cast<const float*>(args.weight), *bias = static_cast<const float*>(args.bias);
    float *shift = static_cast<float*>(workspace), *scale = shift + channels_, *offset = scale + channels_;
    for (std::int64_t c = 0; c < view_.c; ++c) {
      const double mean = stats[1 + c], slope = (weight ? weight[c] : 1) * stats[1 + view_.c + c];
      shift[c] = static_cast<float>(mean);
      scale[c] = static_cast<float>(slope);
      offset[c] = static_cast<float>((bias ? bias[c] : 0) - (mean - static_cast<double>(shift[c])) * slope);
    }
    for (std::int64_t c = view_.c; c < channels_; ++c) shift[c] = scale[c] = offset[c] = 0;
    with_element_type(tensors_[0].type, [&]<typename T>() {
      const T *x = static_cast<const T*>(args.x), *addend = add_ ? static_cast<const T*>(args.addend) : nullptr;
      T* const y = static_cast<T*>(args.y);
      for_planes([&](std::int64_t at, std::int64_t c) {
        normalise(plane_, relu_, {shift + c, scale + c, offset + c}, x + at, addend == nullptr ? nullptr : addend + at,
                  y + at);
      });
    });
  }

 private:
  bool relu_, add_;
};

class BackwardOp : public NormOp {
 public:
  BackwardOp(const BatchNormBackward& d, const CpuOpOptions& options)
      : NormOp(d.x, 4, options), parts_(d.parts), relu_(d.relu) {}

  void execute(std::span<void* const> pointers, void* workspace) override {
    const auto args = args_of<BatchNormBackward>(pointers);
    const double* stats = static_cast<const double*>(args.stats);
    const float* weight = static_cast<const float*>(args.weight);
    const double* sums = static_cast<const double*>(args.sums);
    float* shift = static_cast<float*>(workspace);
    float *scale = shift + channels_, *slope = scale + channels_, *offset = slope + channels_;
    const double share = stats[0] > 0 ? 1 / stats[0] : 0;  // 0: running statistics, which do not depend on x
    for (std::int64_t c = 0; c < view_.c; ++c) {
      double sum = 0, product = 0;
      for (int part = 0; part < parts_; ++part) {
        sum += sums[part * 2 * view_.c + c];
        product += sums[part * 2 * view_.c + view_.c + c];
      }
      const double mean = stats[1 + c], inv_std = stats[1 + view_.c + c], factor = (weight ? weight[c] : 1) * inv_std;
      const double tilt = -factor * inv_std * product * share;
      shift[c] = static_cast<float>(mean);
      scale[c] = static_cast<float>(factor);
      slope[c] = static_cast<float>(tilt);
      offset[c] = static_cast<float>(-factor * sum * share - (mean - static_cast<double>(shift[c])) * tilt);
    }
    for (std::int64_t c = view_.c; c < channels_; ++c) shift[c] = scale[c] = slope[c] = offset[c] = 0;
    with_element_type(tensors_[0].type, [&]<typename T>() {
      const T *dy = static_cast<const T*>(args.dz), *x = static_cast<const T*>(args.x),
              *y = relu_ ? static_cast<const T*>(args.y) : nullptr;
      T* const dx = static_cast<T*>(args.dx);
      for_planes([&](std::int64_t at, std::int64_t c) {
        normalise_gradient(plane_, {shift + c, scale + c, slope + c, offset + c}, dy + at, x + at,
                           y == nullptr ? nullptr : y + at, dx + at);
      });
    });
  }

 private:
  int parts_;
  bool relu_;
};

}  // namespace

std::unique_ptr<HostOp> make(const BatchNormForward& d, const CpuOpOptions& options) {
  return std::make_unique<ForwardOp>(d, options);
}
std::unique_ptr<HostOp> make(const BatchNormBackward& d, const CpuOpOptions& options) {
  return std::make_unique<BackwardOp>(d, options);
}

// Implements BatchNormFold for every blocked weight layout of oneDNN.

namespace {

// Describes weights (groups, O / groups, I / groups, kH, kW) as runs of contiguous elements; those without groups have
// one. Element p of a run belongs to the output channel channel[p], counted from the first channel of the run. Padded
// channels of each group count, too.
struct Runs {
  std::vector<std::int64_t> channel{0};
  std::array<std::int64_t, 5> count{}, stride{};  // of the runs, along each axis
  std::int64_t outputs = 1;                       // channels of a group
  std::int64_t padded_groups = 1, padded_outputs = 1;
  std::array<std::int64_t, 2> step{};  // channels from one run to the next along the axes 0 and 1

  explicit Runs(const TensorDesc& weights) {
    const dnnl_compat::Blocking b = dnnl_compat::blocking_of(desc_of(weights.layout));
    const std::size_t first = 5 - b.dims.size();  // the axis of the layout's first dimension
    count[0] = 1;
    std::copy(b.padded.begin(), b.padded.end(), count.begin() + static_cast<std::ptrdiff_t>(first));
    std::copy(b.strides.begin(), b.strides.end(), stride.begin() + static_cast<std::ptrdiff_t>(first));
    outputs = b.dims[1 - first];
    padded_groups = count[0], padded_outputs = count[1];
    step = {padded_outputs, 1};
    for (std::size_t i = b.inner_sizes.size(); i-- > 0;) {
      const std::int64_t size = b.inner_sizes[i];
      const std::size_t axis = first + static_cast<std::size_t>(b.inner_axes[i]);
      count[axis] /= size;
      const std::int64_t apart = axis < 2 ? std::exchange(step[axis], step[axis] * size) : 0;
      const std::vector<std::int64_t> within = channel;
      for (std::int64_t j = 1; j < size; ++j)
        for (const std::int64_t c : within) channel.push_back(j * apart + c);
    }
    const std::int64_t filter = count[2] * count[3] * count[4];
    if (b.inner_sizes.empty() && stride[1] == filter) {  // the filter of each channel is contiguous
      channel.assign(static_cast<std::size_t>(filter), 0);
      count = {count[0], count[1], 1, 1, 1};
    }
  }
  std::int64_t size() const { return count[0] * count[1] * count[2] * count[3] * count[4]; }
  std::int64_t padded_channels() const { return padded_groups * padded_outputs; }
  std::int64_t padded(std::int64_t c) const { return c / outputs * padded_outputs + c % outputs; }
};

class FoldOp : public HostOp {
 public:
  FoldOp(const BatchNormFold& d, const CpuOpOptions& options)
      : channels_(d.w.shape[0]), eps_(d.eps), weights_(resolved_plain(d.w)) {
    tensors_ = {resolved_plain(d.w)};
    threads_ = threads_for(options.threads, static_cast<std::int64_t>(tensors_[0].layout.bytes));
  }
  std::size_t workspace_bytes() const override {
    return static_cast<std::size_t>(weights_.padded_channels()) * sizeof(float);
  }
  std::string implementation() const override { return "own:runs"; }

  void execute(std::span<void* const> pointers, void* workspace) override {
    const auto args = args_of<BatchNormFold>(pointers);
    const auto number = [](const void* from, std::int64_t c) { return static_cast<const float*>(from)[c]; };
    float* const scales = static_cast<float*>(workspace);
    std::fill(scales, scales + weights_.padded_channels(), 0.0f);
    for (std::int64_t c = 0; c < channels_; ++c) {
      const double scale = number(args.weight, c) / std::sqrt(number(args.variance, c) + eps_);
      const double b = args.b != nullptr ? number(args.b, c) : 0;
      static_cast<float*>(args.folded_b)[c] =
          static_cast<float>(number(args.bias, c) + (b - number(args.mean, c)) * scale);
      scales[weights_.padded(c)] = static_cast<float>(scale);
    }
    with_element_type(tensors_[0].type, [&]<typename T>() {
      scale_runs(static_cast<const T*>(args.w), scales, static_cast<T*>(args.folded_w));
    });
  }

 private:
  template <typename T>
  void scale_runs(const T* w, const float* scales, T* to) const {
    parallel_ranges(threads_, weights_.size(), 1, [=, this](std::int64_t run, std::int64_t end) {
      const auto length = static_cast<std::int64_t>(weights_.channel.size());
      const std::int64_t* const channel = weights_.channel.data();
      for (; run < end; ++run) {
        std::int64_t rest = run, begin = 0;
        for (std::size_t axis = 4; axis > 1; rest /= weights_.count[axis--])
          begin += rest % weights_.count[axis] * weights_.stride[axis];
        const std::int64_t output = rest % weights_.count[1], group = rest / weights_.count[1];
        begin += output * weights_.stride[1] + group * weights_.stride[0];
        const float* const own = scales + group * weights_.step[0] + output * weights_.step[1];
        for (std::int64_t i = 0; i < length; ++i)
          to[begin + i] = from_float<T>(to_float(w[begin + i]) * own[channel[i]]);
      }
    });
  }

  std::int64_t channels_;
  double eps_;
  Runs weights_;
  int threads_ = 1;
};

}  // namespace

std::unique_ptr<HostOp> make(const BatchNormFold& d, const CpuOpOptions& options) {
  return std::make_unique<FoldOp>(d, options);
}

// BatchNormMerge, BatchNormTrack and BatchNormRunning: a few values per channel.

namespace {

// Merges the moments of `parts` parts into `merged`: all means, then all sums of squares. Returns the count.
double merge_parts(std::int64_t channels, int parts, const double* moments, double* merged) {
  double count = 0;
  for (int part = 0; part < parts; ++part, moments += 1 + 2 * channels) {
    merge_moments(channels, count, merged, merged + channels, moments[0], moments + 1, moments + 1 + channels);
    count += moments[0];
  }
  return count;
}

class MergeOp : public HostOp {
 public:
  explicit MergeOp(const BatchNormMerge& d) : desc_(d) {}
  std::size_t workspace_bytes() const override { return static_cast<std::size_t>(2 * desc_.channels) * sizeof(double); }
  std::string implementation() const override { return "own:double"; }

  void execute(std::span<void* const> pointers, void* workspace) override {
    const auto args = args_of<BatchNormMerge>(pointers);
    double* const merged = static_cast<double*>(workspace);
    const double count = merge_parts(desc_.channels, desc_.parts, static_cast<const double*>(args.moments), merged);
    write_stats(desc_.channels, count, merged, merged + desc_.channels, desc_.eps, static_cast<double*>(args.stats));
  }

 private:
  BatchNormMerge desc_;
};

class TrackOp : public HostOp {
 public:
  explicit TrackOp(const BatchNormTrack& d) : desc_(d) {
    for (const BatchNormTrack::Norm& norm : d.norms) channels_ = std::max(channels_, norm.channels);
  }
  std::size_t workspace_bytes() const override { return static_cast<std::size_t>(2 * channels_) * sizeof(double); }
  std::string implementation() const override { return "own:double"; }

  void execute(std::span<void* const> pointers, void* workspace) override {
    const auto args = args_of<BatchNormTrack>(pointers);
    double* const mean = static_cast<double*>(workspace);
    for (const BatchNormTrack::Norm& norm : desc_.norms) {
      const double *const moments = static_cast<const double*>(args.moments) + norm.moments,
                          *squares = mean + norm.channels;
      float* const running = static_cast<float*>(args.running);
      const double count = merge_parts(norm.channels, desc_.parts, moments, mean);
      if (!(count > 0)) continue;
      const double divisor = count > 1 ? count - 1 : 1, own = norm.momentum, kept = 1 - own;
      for (std::int64_t c = 0; c < norm.channels; ++c) {
        if (!std::isfinite(mean[c]) || !std::isfinite(squares[c])) continue;  // from a step that is skipped or fails
        float &to_mean = running[norm.mean + c], &to_variance = running[norm.variance + c];
        to_mean = static_cast<float>(kept * to_mean + own * mean[c]);
        to_variance = static_cast<float>(kept * to_variance + own * squares[c] / divisor);
      }
    }
  }

 private:
  BatchNormTrack desc_;
  std::int64_t channels_ = 0;  // of the largest normalisation
};

class RunningOp : public HostOp {
 public:
  explicit RunningOp(const BatchNormRunning& d) : desc_(d) {}
  std::string implementation() const override { return "own:double"; }

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<BatchNormRunning>(pointers);
    const float *mean = static_cast<const float*>(args.mean), *variance = static_cast<const float*>(args.variance);
    double* stats = static_cast<double*>(args.stats);
    stats[0] = 0;
    for (std::int64_t c = 0; c < desc_.channels; ++c) {
      stats[1 + c] = mean[c];
      stats[1 + desc_.channels + c] = 1 / std::sqrt(variance[c] + desc_.eps);
    }
  }

 private:
  BatchNormRunning desc_;
};

}  // namespace

std::unique_ptr<HostOp> make(const BatchNormMerge& d, const CpuOpOptions&) { return std::make_unique<MergeOp>(d); }
std::unique_ptr<HostOp> make(const BatchNormTrack& d, const CpuOpOptions&) { return std::make_unique<TrackOp>(d); }
std::unique_ptr<HostOp> make(const BatchNormRunning& d, const CpuOpOptions&) { return std::make_unique<RunningOp>(d); }

// BatchNormMoments and BatchNormBackwardSums: reductions over a batch, each in one pass over memory.

namespace {

// Base of ops that reduce to two doubles per group of samples and channel.
class GroupedSums : public HostOp {
 public:
  GroupedSums(const TensorDesc& x, int tensors_read, const CpuOpOptions& options)
      : view_(view_of(resolved_plain(x))), plane_{view_.h * view_.w, view_.block}, groups_(view_.n) {
    tensors_ = {resolved_plain(x)};
    channels_ = view_.blocks * view_.block;
    threads_ = threads_for(options.threads, static_cast<std::int64_t>(tensors_[0].layout.bytes) * tensors_read);
  }
  std::string implementation() const override { return "own:simd"; }

 protected:
  std::size_t sums_bytes() const { return static_cast<std::size_t>(2 * groups_.count * channels_) * sizeof(double); }
  // The sums of a group: the first value of each channel, then the second value of each channel.
  double* sums_of(void* workspace, std::int64_t group) const {
    return static_cast<double*>(workspace) + 2 * channels_ * group;
  }
  // Calls body(plane, samples before it in its group, sample, block, first values, second values). The values belong to
  // the block's channels and are zero before the group's first sample. In nhwc a whole group is one plane.
  template <typename Body>
  void for_planes(void* workspace, const Body& body) const {
    const bool joined = view_.blocks == 1 && view_.block > 1 && view_.stride_n == plane_.pixels * plane_.block;
    for_grouped_planes(threads_, groups_, view_.blocks, [&](std::int64_t group, std::int64_t n, std::int64_t block) {
      double *first = sums_of(workspace, group) + block * view_.block, *second = first + channels_;
      const std::int64_t begin = groups_.begin(group);
      NormPlane plane = plane_;
      if (n == begin) {
        std::fill_n(first, view_.block, 0.0);
        std::fill_n(second, view_.block, 0.0);
        if (joined) plane.pixels *= groups_.begin(group + 1) - begin;
      } else if (joined) {
        return;
      }
      body(plane, n - begin, n, block, first, second);
    });
  }

  ActivationView view_;
  NormPlane plane_;
  SampleGroups groups_;
  std::int64_t channels_;  // padding included
  int threads_ = 1;
};

class MomentsOp : public GroupedSums {
 public:
  MomentsOp(const BatchNormMoments& d, const CpuOpOptions& options) : GroupedSums(d.x, 1, options), eps_(d.eps) {}
  std::size_t workspace_bytes() const override { return sums_bytes(); }

  void execute(std::span<void* const> pointers, void* workspace) override {
    const auto args = args_of<BatchNormMoments>(pointers);
    double* moments = static_cast<double*>(args.moments);
    with_element_type(tensors_[0].type, [&]<typename T>() {
      const T* x = static_cast<const T*>(args.x);
      for_planes(workspace,
                 [&](const NormPlane& plane, std::int64_t before, std::int64_t n, std::int64_t block, double* mean,
                     double* squares) { add_moments(plane, x + view_.at(n, block), count_of(before), mean, squares); });
    });
    moments[0] = count_of(view_.n);
    double *mean = moments + 1, *squares = mean + view_.c;
    std::fill_n(mean, 2 * view_.c, 0.0);
    for (std::int64_t group = 0; group < groups_.count; ++group) {
      const double* part = sums_of(workspace, group);
      const std::int64_t begin = groups_.begin(group);
      merge_moments(view_.c, count_of(begin), mean, squares, count_of(groups_.begin(group + 1) - begin), part,
                    part + channels_);
    }
    if (eps_) write_stats(view_.c, moments[0], mean, squares, *eps_, static_cast<double*>(args.stats));
  }

 private:
  double count_of(std::int64_t samples) const { return static_cast<double>(samples * plane_.pixels); }

  std::optional<double> eps_;
};

class BackwardSumsOp : public GroupedSums {
 public:
  BackwardSumsOp(const BatchNormBackwardSums& d, const CpuOpOptions& options)
      : GroupedSums(d.x, 2, options), relu_(d.relu) {}
  std::size_t workspace_bytes() const override {
    return sums_bytes() + static_cast<std::size_t>(channels_) * sizeof(float);
  }

  void execute(std::span<void* const> pointers, void* workspace) override {
    const auto args = args_of<BatchNormBackwardSums>(pointers);
    const double* stats = static_cast<const double*>(args.stats);
    float* shift = reinterpret_cast<float*>(sums_of(workspace, groups_.count));
    for (std::int64_t c = 0; c < channels_; ++c) shift[c] = c < view_.c ? static_cast<float>(stats[1 + c]) : 0.f;
    with_element_type(tensors_[0].type, [&]<typename T>() {
      const T *dy = static_cast<const T*>(args.dy), *dy2 = static_cast<const T*>(args.dy2),
              *x = static_cast<const T*>(args.x), *y = static_cast<const T*>(args.y);
      T* const dz = static_cast<T*>(args.dz);
      for_planes(workspace, [&](const NormPlane& plane, std::int64_t, std::int64_t n, std::int64_t block, double* sums,
                                double* products) {
        const std::int64_t at = view_.at(n, block);
        const NormGradient<T> tensors{dy + at, dy2 == nullptr ? nullptr : dy2 + at, x + at, relu_ ? y + at : nullptr,
                                      dz == nullptr ? nullptr : dz + at};
        add_gradient_sums(plane, tensors, shift + block * view_.block, sums, products);
      });
    });
    finish(stats, shift, workspace, static_cast<double*>(args.sums), static_cast<float*>(args.dweight),
           static_cast<float*>(args.dbias));
  }

 private:
  // Adds the groups in order, then converts the sums of dz * (x - shift) to those of dz * xhat.
  void finish(const double* stats, const float* shift, void* workspace, double* sums, float* dweight,
              float* dbias) const {
    const std::int64_t channels = view_.c;
    double* products = sums + channels;
    std::fill_n(sums, 2 * channels, 0.0);
    for (std::int64_t group = 0; group < groups_.count; ++group) {
      const double* part = sums_of(workspace, group);
      for (std::int64_t c = 0; c < channels; ++c) sums[c] += part[c];
      for (std::int64_t c = 0; c < channels; ++c) products[c] += part[channels_ + c];
    }
    for (std::int64_t c = 0; c < channels; ++c) {
      const double mean = stats[1 + c], inv_std = stats[1 + channels + c];
      products[c] = (products[c] - (mean - static_cast<double>(shift[c])) * sums[c]) * inv_std;
      if (dweight) dweight[c] = static_cast<float>(products[c]);
      if (dbias) dbias[c] = static_cast<float>(sums[c]);
    }
  }

  bool relu_;
};

}  // namespace

std::unique_ptr<HostOp> make(const BatchNormMoments& d, const CpuOpOptions& options) {
  return std::make_unique<MomentsOp>(d, options);
}
std::unique_ptr<HostOp> make(const BatchNormBackwardSums& d, const CpuOpOptions& options) {
  return std::make_unique<BackwardSumsOp>(d, options);
}

}  // namespace dp::kernels
