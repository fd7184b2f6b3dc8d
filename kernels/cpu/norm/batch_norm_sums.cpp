// BatchNormMoments and BatchNormBackwardSums: reductions over a batch, each in one pass over memory.
#include <memory>

#include "kernels/cpu/bfloat16/element.h"
#include "kernels/cpu/cpu_op.h"
#include "kernels/cpu/norm/batch_norm_plane.h"
#include "kernels/op_args.h"

namespace dp::kernels {
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
      dweight[c] = static_cast<float>(products[c]);
      dbias[c] = static_cast<float>(sums[c]);
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
