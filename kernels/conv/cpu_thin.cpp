#include "kernels/conv/cpu_own.h"

#include <algorithm>
#include <cstring>

#include "kernels/device/cpu/cpu_layout.h"
#include "kernels/device/cpu/dnnl_op.h"
#include "kernels/device/cpu/lanes.h"
#include "kernels/device/cpu/parallel.h"
#include "kernels/op_args.h"

namespace dp::kernels {
namespace {

struct Plane {  // one image channel, one block of dy, one kernel row
  const float* x;
  const float* dy;
  std::int64_t height, width, out_height, out_width, dy_stride_h;
  std::int64_t stride, padding, kernel_row;
};

// sums[kw][lane] += sum over the plane of x(row + kernel_row, col + kw) * dy(row, col, lane)
template <int L, int K>
void add_row_of_taps(const Plane& p, float* sums) {
  using V = Lanes<L>;
  typename V::Floats acc[K] = {};
  // [inner_begin, inner_end): the columns whose taps are all inside the image.
  const std::int64_t inner_begin = std::min(p.out_width, (p.padding + p.stride - 1) / p.stride);
  const std::int64_t last = p.width + p.padding - K;
  const std::int64_t inner_end = last < 0 ? inner_begin : std::clamp(last / p.stride + 1, inner_begin, p.out_width);
  for (std::int64_t row = 0; row < p.out_height; ++row) {
    const std::int64_t in_row = row * p.stride + p.kernel_row - p.padding;
    if (in_row < 0 || in_row >= p.height) continue;
    const float* x = p.x + in_row * p.width - p.padding;
    const float* dy = p.dy + row * p.dy_stride_h;
    const auto edge = [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t col = begin; col < end; ++col) {
        const typename V::Floats d = V::load(dy + col * L);
        for (int kw = 0; kw < K; ++kw) {
          const std::int64_t in_col = col * p.stride + kw - p.padding;
          if (in_col >= 0 && in_col < p.width) acc[kw] += x[col * p.stride + kw] * d;
        }
      }
    };
    edge(0, inner_begin);
    for (std::int64_t col = inner_begin; col < inner_end; ++col) {
      const typename V::Floats d = V::load(dy + col * L);
      for (int kw = 0; kw < K; ++kw) acc[kw] += x[col * p.stride + kw] * d;
    }
    edge(inner_end, p.out_width);
  }
  for (int kw = 0; kw < K; ++kw)
    for (int lane = 0; lane < L; ++lane) sums[kw * L + lane] += acc[kw][lane];
}

template <int L>
void add_bias(const Plane& p, float* sums) {
  float acc[L] = {};
  for (std::int64_t row = 0; row < p.out_height; ++row) {
    const float* dy = p.dy + row * p.dy_stride_h;
    for (std::int64_t col = 0; col < p.out_width; ++col)
      for (int lane = 0; lane < L; ++lane) acc[lane] += dy[col * L + lane];
  }
  for (int lane = 0; lane < L; ++lane) sums[lane] += acc[lane];
}

class ThinBackwardWeights : public HostOp {
 public:
  ThinBackwardWeights(const Conv2dBackwardWeights& d, const CpuOpOptions& options)
      : threads_(options.threads),
        kernel_(d.window.kernel.h),
        stride_(d.window.stride.h),
        padding_(d.window.padding.h) {
    tensors_ = {resolved_plain(d.x), d.dy, resolved_plain(d.dw)};
    x_ = view_of(tensors_[0]);
    dy_ = view_of(tensors_[1]);
    places_ = places_of(desc_of(tensors_[2].layout));
    // The sums of one thread: per block [channel of x][kh][kw][lane], then the bias [lane].
    taps_ = x_.c * kernel_ * kernel_;
    sums_ = dy_.blocks * dy_.block * (taps_ + 1);
  }

  std::size_t workspace_bytes() const override { return static_cast<std::size_t>(threads_ * sums_) * sizeof(float); }
  std::string implementation() const override { return "own:thin"; }

  void execute(std::span<void* const> pointers, void* workspace) override {
    const auto args = args_of<Conv2dBackwardWeights>(pointers);
    const float* x = static_cast<const float*>(args.x);
    const float* dy = static_cast<const float*>(args.dy);
    float* all = static_cast<float*>(workspace);
    std::memset(all, 0, workspace_bytes());
    // One fixed range of images per thread, so that results depend only on the number of threads.
    parallel_ranges(threads_, threads_, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t)
        for (std::int64_t n = x_.n * t / threads_; n < x_.n * (t + 1) / threads_; ++n)
          for (std::int64_t block = 0; block < dy_.blocks; ++block) add_image(x, dy, n, block, all + t * sums_);
    });
    for (int t = 1; t < threads_; ++t)
      for (std::int64_t i = 0; i < sums_; ++i) all[i] += all[t * sums_ + i];

    float* dw = static_cast<float*>(args.dw);
    float* db = static_cast<float*>(args.db);
    std::memset(dw, 0, tensors_[2].layout.bytes);
    for (std::int64_t o = 0; o < dy_.c; ++o) {
      const float* block = all + o / dy_.block * dy_.block * (taps_ + 1) + o % dy_.block;
      for (std::int64_t tap = 0; tap < taps_; ++tap) dw[places_[o * taps_ + tap]] = block[tap * dy_.block];
      if (db != nullptr) db[o] = block[taps_ * dy_.block];
    }
  }

 private:
  void add_image(const float* x, const float* dy, std::int64_t n, std::int64_t block, float* sums) const {
    Plane p{nullptr, dy + dy_.at(n, block), x_.h, x_.w, dy_.h, dy_.w, dy_.stride_h, stride_, padding_, 0};
    sums += block * dy_.block * (taps_ + 1);
    for (std::int64_t channel = 0; channel < x_.c; ++channel)
      for (int row = 0; row < kernel_; ++row) {
        p.x = x + x_.at(n, channel);
        p.kernel_row = row;
        float* row_sums = sums + (channel * kernel_ + row) * kernel_ * dy_.block;
        dy_.block == 16 ? by_kernel<16>(p, row_sums) : by_kernel<8>(p, row_sums);
      }
    float* bias = sums + taps_ * dy_.block;
    dy_.block == 16 ? add_bias<16>(p, bias) : add_bias<8>(p, bias);
  }
  template <int L>
  void by_kernel(const Plane& p, float* sums) const {
    switch (kernel_) {
      case 1: return add_row_of_taps<L, 1>(p, sums);
      case 3: return add_row_of_taps<L, 3>(p, sums);
      case 5: return add_row_of_taps<L, 5>(p, sums);
      default: return add_row_of_taps<L, 7>(p, sums);
    }
  }

  int threads_, kernel_, stride_, padding_;
  std::int64_t taps_ = 0, sums_ = 0;
  ActivationView x_, dy_;
  std::vector<std::int64_t> places_;
};

}  // namespace

std::unique_ptr<HostOp> make_thin_backward_weights(const Conv2dBackwardWeights& d, const CpuOpOptions& options) {
  if (!is_plain(d.x, d.dw, d.window)) return nullptr;
  const int k = d.window.kernel.h;
  if (d.dy.layout.any() || (k != 1 && k != 3 && k != 5 && k != 7)) return nullptr;
  const ActivationView x = view_of(resolved_plain(d.x)), dy = view_of(d.dy);
  if (x.block != 1 || (dy.block != 8 && dy.block != 16)) return nullptr;
  return std::make_unique<ThinBackwardWeights>(d, options);
}

}  // namespace dp::kernels
