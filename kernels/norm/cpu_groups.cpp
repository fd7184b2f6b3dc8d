// Group normalisation on CPUs. Each thread processes whole samples: it reduces each channel, combines the channels of
// each group, then computes the result in a second pass.
#include <algorithm>
#include <cmath>
#include <memory>

#include "kernels/device/cpu/bfloat16.h"
#include "kernels/device/cpu/cpu_layout.h"
#include "kernels/device/cpu/cpu_op.h"
#include "kernels/device/cpu/parallel.h"
#include "kernels/norm/cpu_plane.h"
#include "kernels/op_args.h"

namespace dp::kernels {
namespace {

class GroupOp : public HostOp {
 public:
  GroupOp(const TensorDesc& x, std::int64_t groups, int tensors_read, const CpuOpOptions& options)
      : view_(view_of(resolved_plain(x))), plane_{view_.h * view_.w, view_.block}, groups_(groups) {
    tensors_ = {resolved_plain(x)};
    channels_ = view_.blocks * view_.block;
    each_ = view_.c / groups_;
    threads_ = threads_for(options.threads, static_cast<std::int64_t>(tensors_[0].layout.bytes) * tensors_read);
  }
  std::string implementation() const override { return "own:simd"; }

 protected:
  double count() const { return static_cast<double>(each_ * plane_.pixels); }  // values of a group

  // Calls body(first element, first channel) for each plane of a sample.
  template <typename Body>
  void for_planes(std::int64_t n, const Body& body) const {
    for (std::int64_t block = 0; block < view_.blocks; ++block) body(view_.at(n, block), block * view_.block);
  }
  // Calls body(sample, thread).
  template <typename Body>
  void for_samples(const Body& body) const {
    parallel_ranges(threads_, view_.n, 1, [&](std::int64_t begin, std::int64_t end, int thread) {
      for (std::int64_t n = begin; n < end; ++n) body(n, thread);
    });
  }

  ActivationView view_;
  NormPlane plane_;
  std::int64_t groups_, each_;  // each_: channels of a group
  std::int64_t channels_;       // padding included: its coefficients are zero
  int threads_ = 1;
};

class GroupForwardOp : public GroupOp {
 public:
  GroupForwardOp(const GroupNormForward& d, const CpuOpOptions& options)
      : GroupOp(d.x, d.groups, 2, options), eps_(d.eps), affine_(d.affine), relu_(d.relu) {}
  std::size_t workspace_bytes() const override { return static_cast<std::size_t>(threads_) * thread_bytes(); }

  void execute(std::span<void* const> pointers, void* workspace) override {
    const auto args = args_of<GroupNormForward>(pointers);
    with_element_type(tensors_[0].type, [&]<typename T>() {
      const T* const x = static_cast<const T*>(args.x);
      T* const y = static_cast<T*>(args.y);
      for_samples([&](std::int64_t n, int thread) {
        double* const mean = reinterpret_cast<double*>(static_cast<char*>(workspace) +
                                                       static_cast<std::size_t>(thread) * thread_bytes());
        double* const squares = mean + channels_;
        float *const shift = reinterpret_cast<float*>(squares + channels_), *const scale = shift + channels_,
                     *const offset = scale + channels_;
        std::fill_n(mean, 2 * channels_, 0.0);
        std::fill_n(shift, 3 * channels_, 0.0f);
        for_planes(n, [&](std::int64_t at, std::int64_t c) { add_moments(plane_, x + at, 0, mean + c, squares + c); });
        for (std::int64_t group = 0; group < groups_; ++group) {
          const std::int64_t first = group * each_;
          double* const stats = static_cast<double*>(args.stats) + 2 * (n * groups_ + group);
          write_group(mean + first, squares + first, stats);
          for (std::int64_t c = first; c < first + each_; ++c) {
            const double slope = affine_ ? static_cast<const float*>(args.weight)[c] * stats[1] : stats[1];
            const double bias = affine_ ? static_cast<const float*>(args.bias)[c] : 0;
            shift[c] = static_cast<float>(stats[0]);
            scale[c] = static_cast<float>(slope);
            offset[c] = static_cast<float>(bias - (stats[0] - static_cast<double>(shift[c])) * slope);
          }
        }
        for_planes(n, [&](std::int64_t at, std::int64_t c) {
          normalise(plane_, relu_, {shift + c, scale + c, offset + c}, x + at, static_cast<const T*>(nullptr), y + at);
        });
      });
    });
  }

 private:
  std::size_t thread_bytes() const {  // a fourth float keeps the doubles of the next thread aligned
    return static_cast<std::size_t>(channels_) * (2 * sizeof(double) + 4 * sizeof(float));
  }
  // Writes the stats of a group from the moments of its channels.
  void write_group(const double* mean, const double* squares, double* stats) const {
    double all = 0, sum = 0;
    for (std::int64_t c = 0; c < each_; ++c) all += mean[c] / static_cast<double>(each_);
    for (std::int64_t c = 0; c < each_; ++c)
      sum += squares[c] + static_cast<double>(plane_.pixels) * (mean[c] - all) * (mean[c] - all);
    stats[0] = all, stats[1] = 1 / std::sqrt(sum / count() + eps_);
  }

  double eps_;
  bool affine_, relu_;
};

class GroupBackwardOp : public GroupOp {
 public:
  GroupBackwardOp(const GroupNormBackward& d, const CpuOpOptions& options)
      : GroupOp(d.x, d.groups, 3, options), affine_(d.affine) {}
  std::size_t workspace_bytes() const override {
    return sums_bytes() + static_cast<std::size_t>(threads_ * 4 * channels_) * sizeof(float);
  }

  void execute(std::span<void* const> pointers, void* workspace) override {
    const auto args = args_of<GroupNormBackward>(pointers);
    const float* const weight = static_cast<const float*>(args.weight);
    double* const all_sums = static_cast<double*>(workspace);
    float* const coefficients = reinterpret_cast<float*>(static_cast<char*>(workspace) + sums_bytes());
    with_element_type(tensors_[0].type, [&]<typename T>() {
      const T *const dy = static_cast<const T*>(args.dy), *const x = static_cast<const T*>(args.x);
      T* const dx = static_cast<T*>(args.dx);
      for_samples([&](std::int64_t n, int thread) {
        double *const sums = all_sums + n * 2 * channels_, *const products = sums + channels_;
        float *const shift = coefficients + thread * 4 * channels_, *const scale = shift + channels_,
                     *const slope = scale + channels_, *const offset = slope + channels_;
        const double* const stats = static_cast<const double*>(args.stats) + 2 * n * groups_;
        std::fill_n(sums, 2 * channels_, 0.0);
        std::fill_n(shift, 4 * channels_, 0.0f);
        for (std::int64_t c = 0; c < view_.c; ++c) shift[c] = static_cast<float>(stats[2 * (c / each_)]);
        for_planes(n, [&](std::int64_t at, std::int64_t c) {
          const NormGradient<T> tensors{dy + at, nullptr, x + at, nullptr, nullptr};
          add_gradient_sums(plane_, tensors, shift + c, sums + c, products + c);
        });
        for (std::int64_t group = 0; group < groups_; ++group) {
          const double mean = stats[2 * group], inv_std = stats[2 * group + 1];
          const std::int64_t first = group * each_, last = first + each_;
          const auto weight_of = [&](std::int64_t c) { return affine_ ? static_cast<double>(weight[c]) : 1.0; };
          double sum = 0, product = 0;
          for (std::int64_t c = first; c < last; ++c) {
            products[c] = (products[c] - (mean - static_cast<double>(shift[c])) * sums[c]) * inv_std;
            sum += weight_of(c) * sums[c];
            product += weight_of(c) * products[c];
          }
          const double tilt = -inv_std * inv_std * product / count();
          for (std::int64_t c = first; c < last; ++c) {
            scale[c] = static_cast<float>(inv_std * weight_of(c));
            slope[c] = static_cast<float>(tilt);
            offset[c] = static_cast<float>(-inv_std * sum / count() - (mean - static_cast<double>(shift[c])) * tilt);
          }
        }
        for_planes(n, [&](std::int64_t at, std::int64_t c) {
          normalise_gradient(plane_, {shift + c, scale + c, slope + c, offset + c}, dy + at, x + at,
                             static_cast<const T*>(nullptr), dx + at);
        });
      });
    });
    if (affine_) add_samples(all_sums, static_cast<float*>(args.dweight), static_cast<float*>(args.dbias));
  }

 private:
  std::size_t sums_bytes() const { return static_cast<std::size_t>(view_.n * 2 * channels_) * sizeof(double); }

  // Adds the sums of all samples in order.
  void add_samples(const double* sums, float* dweight, float* dbias) const {
    for (std::int64_t c = 0; c < view_.c; ++c) {
      double sum = 0, product = 0;
      for (std::int64_t n = 0; n < view_.n; ++n) {
        sum += sums[n * 2 * channels_ + c];
        product += sums[(n * 2 + 1) * channels_ + c];
      }
      dweight[c] = static_cast<float>(product);
      dbias[c] = static_cast<float>(sum);
    }
  }

  bool affine_;
};

}  // namespace

std::unique_ptr<HostOp> make(const GroupNormForward& d, const CpuOpOptions& options) {
  return std::make_unique<GroupForwardOp>(d, options);
}
std::unique_ptr<HostOp> make(const GroupNormBackward& d, const CpuOpOptions& options) {
  return std::make_unique<GroupBackwardOp>(d, options);
}

}  // namespace dp::kernels
