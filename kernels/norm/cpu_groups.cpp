// Group and layer normalisation on CPUs. Each thread processes whole samples.
#include <algorithm>
#include <cmath>
#include <memory>

#include "kernels/device/cpu/bfloat16.h"
#include "kernels/device/cpu/cpu_layout.h"
#include "kernels/device/cpu/cpu_op.h"
#include "kernels/device/cpu/lanes.h"
#include "kernels/device/cpu/parallel.h"
#include "kernels/norm/cpu_plane.h"
#include "kernels/op_args.h"

namespace dp::kernels {
namespace {

// Adds the sums of all samples in order. `sums` has two arrays of `stride` elements for each sample: the sums of dy,
// and those of dy * xhat.
void add_sums(const double* sums, std::int64_t samples, std::int64_t stride, std::int64_t channels, float* dweight,
              float* dbias) {
  for (std::int64_t c = 0; c < channels; ++c) {
    double sum = 0, product = 0;
    for (std::int64_t n = 0; n < samples; ++n) {
      sum += sums[n * 2 * stride + c];
      product += sums[(n * 2 + 1) * stride + c];
    }
    dweight[c] = static_cast<float>(product);
    dbias[c] = static_cast<float>(sum);
  }
}

// Group normalisation: reduces each channel, combines the channels of each group, then computes the result in a second
// pass.

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
    if (affine_)
      add_sums(all_sums, view_.n, channels_, view_.c, static_cast<float*>(args.dweight),
               static_cast<float*>(args.dbias));
  }

 private:
  std::size_t sums_bytes() const { return static_cast<std::size_t>(view_.n * 2 * channels_) * sizeof(double); }

  bool affine_;
};

// Layer normalisation. A vector holds channels of one pixel if they are contiguous (nhwc, blocks of channels). In nchw
// it holds neighbouring pixels of one channel, and a strip of pixels is processed at a time.

constexpr std::int64_t kStrip = 64;  // pixels

// The normalisation of a pixel: (x - shift) * scale + offset.
struct PixelStats {
  float shift, scale, offset;

  PixelStats(double mean, double inv_std)
      : shift(static_cast<float>(mean)),
        scale(static_cast<float>(inv_std)),
        offset(static_cast<float>((static_cast<double>(shift) - mean) * inv_std)) {}
  template <typename Floats>
  Floats operator()(Floats x) const {
    return (x - shift) * scale + offset;
  }
};

class PixelNormOp : public HostOp {
 public:
  PixelNormOp(const TensorDesc& x, int tensors_read, const CpuOpOptions& options)
      : view_(view_of(resolved_plain(x))), pixels_(view_.h * view_.w), count_(static_cast<double>(view_.c)) {
    tensors_ = {resolved_plain(x)};
    threads_ = threads_for(options.threads, static_cast<std::int64_t>(tensors_[0].layout.bytes) * tensors_read);
  }
  std::string implementation() const override { return "own:simd"; }

 protected:
  // Calls by_pixel(sample, first pixel, last pixel) or by_strip(...), depending on the layout, for each strip of
  // pixels. The strips of a sample are in order.
  template <typename ByPixel, typename ByStrip>
  void for_strips(const ByPixel& by_pixel, const ByStrip& by_strip) const {
    parallel_ranges(threads_, view_.n, 1, [&](std::int64_t begin, std::int64_t end, int thread) {
      for (std::int64_t n = begin; n < end; ++n)
        for (std::int64_t first = 0; first < pixels_; first += kStrip) {
          const std::int64_t last = std::min(first + kStrip, pixels_);
          if (view_.block == 1 && view_.c > 1)
            by_strip(n, first, last, thread);
          else
            by_pixel(n, first, last, thread);
        }
    });
  }
  // Calls body(lanes, first element, first channel) for all vectors of a pixel.
  template <typename Body>
  void for_channels(std::int64_t n, std::int64_t pixel, const Body& body) const {
    for (std::int64_t block = 0; block < view_.blocks; ++block) {
      const std::int64_t at = view_.at(n, block) + pixel * view_.block, first = block * view_.block;
      for_lanes_of(0, std::min(view_.block, view_.c - first),
                   [&](auto lanes, std::int64_t i) { body(lanes, at + i, first + i); });
    }
  }
  template <typename T>
  void clear_padding(std::int64_t n, std::int64_t pixel, T* y) const {
    T* const last = y + view_.at(n, view_.blocks - 1) + pixel * view_.block;
    std::fill(last + (view_.c - (view_.blocks - 1) * view_.block), last + view_.block, T{});
  }
  std::int64_t row(std::int64_t n, std::int64_t c) const { return view_.at(n, c); }  // of nchw

  ActivationView view_;
  std::int64_t pixels_;  // of a sample
  double count_;         // channels
  int threads_ = 1;
};

class PixelForwardOp final : public PixelNormOp {
 public:
  PixelForwardOp(const GroupNormForward& d, const CpuOpOptions& options)
      : PixelNormOp(d.x, 2, options), eps_(d.eps), affine_(d.affine), relu_(d.relu) {}

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<GroupNormForward>(pointers);
    with_element_type(tensors_[0].type, [&]<typename T>() {
      const Tensors<T> all{static_cast<const T*>(args.x), affine_ ? static_cast<const float*>(args.weight) : nullptr,
                           static_cast<const float*>(args.bias), static_cast<T*>(args.y),
                           static_cast<double*>(args.stats)};
      for_strips(
          [&](std::int64_t n, std::int64_t first, std::int64_t last, int) {
            for (std::int64_t pixel = first; pixel < last; ++pixel) normalise_pixel(all, n, pixel);
          },
          [&](std::int64_t n, std::int64_t first, std::int64_t last, int) { normalise_strip(all, n, first, last); });
    });
  }

 private:
  template <typename T>
  struct Tensors {
    const T* x;
    const float *weight, *bias;  // weight: null unless affine
    T* y;
    double* stats;
  };

  // Writes the stats of a pixel. `sum`, `squares`: of the distances from `shift`, a number near the mean.
  template <typename T>
  PixelStats write_stats(const Tensors<T>& all, std::int64_t n, std::int64_t pixel, float shift, double sum,
                         double squares) const {
    const double away = sum / count_, mean = static_cast<double>(shift) + away;
    const double variance = squares / count_ - away * away;
    const double inv_std = 1 / std::sqrt((variance < 0 ? 0 : variance) + eps_);  // may round below 0; NaN stays
    double* const to = all.stats + 2 * (n * pixels_ + pixel);
    to[0] = mean, to[1] = inv_std;
    return {mean, inv_std};
  }

  template <typename T>
  void normalise_pixel(const Tensors<T>& all, std::int64_t n, std::int64_t pixel) const {
    LaneSum values, sum, squares;
    for_channels(n, pixel, [&](auto lanes, std::int64_t i, std::int64_t) { values.add(lanes.load(all.x + i)); });
    const auto shift = static_cast<float>(values.total() / count_);
    for_channels(n, pixel, [&](auto lanes, std::int64_t i, std::int64_t) {
      const auto away = lanes.load(all.x + i) - shift;
      sum.add(away), squares.add(away * away);
    });
    const PixelStats own = write_stats(all, n, pixel, shift, sum.total(), squares.total());
    for_channels(n, pixel, [&](auto lanes, std::int64_t i, std::int64_t c) {
      auto y = own(lanes.load(all.x + i));
      if (all.weight) y = y * lanes.load(all.weight + c) + lanes.load(all.bias + c);
      const decltype(y) zero{};
      if (relu_) y = y < zero ? zero : y;  // lets NaN through
      lanes.store(all.y + i, y);
    });
    clear_padding(n, pixel, all.y);
  }

  template <typename T>
  void normalise_strip(const Tensors<T>& all, std::int64_t n, std::int64_t first, std::int64_t last) const {
    const auto length = static_cast<int>(last - first);
    double mean[kStrip] = {}, squares[kStrip] = {};
    float shift[kStrip], scale[kStrip], offset[kStrip];
    for (std::int64_t c = 0; c < view_.c; ++c) {
      const T* const x = all.x + row(n, c) + first;
      for (int p = 0; p < length; ++p) mean[p] += static_cast<double>(to_float(x[p]));
    }
    for (int p = 0; p < length; ++p) shift[p] = static_cast<float>(mean[p] /= count_);
    for (std::int64_t c = 0; c < view_.c; ++c) {
      const T* const x = all.x + row(n, c) + first;
      for (int p = 0; p < length; ++p) {
        const auto away = static_cast<double>(to_float(x[p]) - shift[p]);
        squares[p] += away * away;
      }
    }
    for (int p = 0; p < length; ++p) {
      const double away = mean[p] - static_cast<double>(shift[p]);
      const PixelStats own = write_stats(all, n, first + p, shift[p], away * count_, squares[p]);
      scale[p] = own.scale, offset[p] = own.offset;
    }
    for (std::int64_t c = 0; c < view_.c; ++c) {
      const T* const x = all.x + row(n, c) + first;
      T* const y = all.y + row(n, c) + first;
      const float weight = all.weight ? all.weight[c] : 1, bias = all.weight ? all.bias[c] : 0;
      for (int p = 0; p < length; ++p) {
        const float value = ((to_float(x[p]) - shift[p]) * scale[p] + offset[p]) * weight + bias;
        y[p] = from_float<T>(relu_ && value < 0 ? 0 : value);
      }
    }
  }

  double eps_;
  bool affine_, relu_;
};

class PixelBackwardOp final : public PixelNormOp {
 public:
  PixelBackwardOp(const GroupNormBackward& d, const CpuOpOptions& options)
      : PixelNormOp(d.x, 3, options), affine_(d.affine) {}
  std::size_t workspace_bytes() const override {  // the sums of each sample, and those of a strip for each thread
    return static_cast<std::size_t>(2 * view_.c) *
           (static_cast<std::size_t>(view_.n) * sizeof(double) + static_cast<std::size_t>(threads_) * sizeof(float));
  }

  void execute(std::span<void* const> pointers, void* workspace) override {
    const auto args = args_of<GroupNormBackward>(pointers);
    double* const sums = static_cast<double*>(workspace);
    float* const of_threads = reinterpret_cast<float*>(sums + view_.n * 2 * view_.c);
    std::fill_n(sums, view_.n * 2 * view_.c, 0.0);
    with_element_type(tensors_[0].type, [&]<typename T>() {
      const Tensors<T> all{static_cast<const T*>(args.dy), static_cast<const T*>(args.x),
                           affine_ ? static_cast<const float*>(args.weight) : nullptr,
                           static_cast<const double*>(args.stats), static_cast<T*>(args.dx)};
      for_strips(
          [&](std::int64_t n, std::int64_t first, std::int64_t last, int thread) {
            float* const strip = of_threads + thread * 2 * view_.c;
            std::fill_n(strip, 2 * view_.c, 0.0f);
            for (std::int64_t pixel = first; pixel < last; ++pixel) backward_pixel(all, n, pixel, strip);
            for (std::int64_t i = 0; i < 2 * view_.c; ++i) sums[n * 2 * view_.c + i] += static_cast<double>(strip[i]);
          },
          [&](std::int64_t n, std::int64_t first, std::int64_t last, int) {
            backward_strip(all, n, first, last, sums + n * 2 * view_.c);
          });
    });
    if (affine_)
      add_sums(sums, view_.n, view_.c, view_.c, static_cast<float*>(args.dweight), static_cast<float*>(args.dbias));
  }

 private:
  template <typename T>
  struct Tensors {
    const T *dy, *x;
    const float* weight;  // null unless affine
    const double* stats;
    T* dx;
  };

  // dx = scale * (g - sum - xhat * product), where g = dy * weight. `sum` and `product` are means over the channels.
  template <typename T>
  void backward_pixel(const Tensors<T>& all, std::int64_t n, std::int64_t pixel, float* strip) const {
    const double* const stats = all.stats + 2 * (n * pixels_ + pixel);
    const PixelStats own(stats[0], stats[1]);
    float *const dbias = strip, *const dweight = strip + view_.c;
    LaneSum sums, products;
    for_channels(n, pixel, [&](auto lanes, std::int64_t i, std::int64_t c) {
      const auto dy = lanes.load(all.dy + i), hat = own(lanes.load(all.x + i)), product = dy * hat;
      sums.add(all.weight ? dy * lanes.load(all.weight + c) : dy);
      products.add(all.weight ? product * lanes.load(all.weight + c) : product);
      if (!all.weight) return;
      lanes.store(dbias + c, lanes.load(dbias + c) + dy);
      lanes.store(dweight + c, lanes.load(dweight + c) + product);
    });
    const auto sum = static_cast<float>(sums.total() / count_), product = static_cast<float>(products.total() / count_);
    for_channels(n, pixel, [&](auto lanes, std::int64_t i, std::int64_t c) {
      auto gradient = lanes.load(all.dy + i);
      if (all.weight) gradient = gradient * lanes.load(all.weight + c);
      lanes.store(all.dx + i, (gradient - sum - own(lanes.load(all.x + i)) * product) * own.scale);
    });
    clear_padding(n, pixel, all.dx);
  }

  template <typename T>
  void backward_strip(const Tensors<T>& all, std::int64_t n, std::int64_t first, std::int64_t last,
                      double* sums) const {
    const auto length = static_cast<int>(last - first);
    float shift[kStrip], scale[kStrip], offset[kStrip], mean_sum[kStrip], mean_product[kStrip];
    double sum[kStrip] = {}, product[kStrip] = {};
    for (int p = 0; p < length; ++p) {
      const double* const stats = all.stats + 2 * (n * pixels_ + first + p);
      const PixelStats own(stats[0], stats[1]);
      shift[p] = own.shift, scale[p] = own.scale, offset[p] = own.offset;
    }
    const auto hat = [&](const T* x, int p) { return (to_float(x[p]) - shift[p]) * scale[p] + offset[p]; };
    for (std::int64_t c = 0; c < view_.c; ++c) {
      const T *const dy = all.dy + row(n, c) + first, *const x = all.x + row(n, c) + first;
      const auto weight = static_cast<double>(all.weight ? all.weight[c] : 1);
      double dbias = 0, dweight = 0;
      for (int p = 0; p < length; ++p) {
        const auto gradient = static_cast<double>(to_float(dy[p])), along = gradient * static_cast<double>(hat(x, p));
        sum[p] += gradient * weight, product[p] += along * weight;
        dbias += gradient, dweight += along;
      }
      sums[c] += dbias, sums[view_.c + c] += dweight;
    }
    for (int p = 0; p < length; ++p) {
      mean_sum[p] = static_cast<float>(sum[p] / count_);
      mean_product[p] = static_cast<float>(product[p] / count_);
    }
    for (std::int64_t c = 0; c < view_.c; ++c) {
      const T *const dy = all.dy + row(n, c) + first, *const x = all.x + row(n, c) + first;
      T* const dx = all.dx + row(n, c) + first;
      const float weight = all.weight ? all.weight[c] : 1;
      for (int p = 0; p < length; ++p)
        dx[p] = from_float<T>((to_float(dy[p]) * weight - mean_sum[p] - hat(x, p) * mean_product[p]) * scale[p]);
    }
  }

  bool affine_;
};

}  // namespace

std::unique_ptr<HostOp> make(const GroupNormForward& d, const CpuOpOptions& options) {
  if (d.groups == kEachPixel) return std::make_unique<PixelForwardOp>(d, options);
  return std::make_unique<GroupForwardOp>(d, options);
}
std::unique_ptr<HostOp> make(const GroupNormBackward& d, const CpuOpOptions& options) {
  if (d.groups == kEachPixel) return std::make_unique<PixelBackwardOp>(d, options);
  return std::make_unique<GroupBackwardOp>(d, options);
}

}  // namespace dp::kernels
