// Weight gradients of depthwise convolutions (one channel a group), for any window (docs/decisions/0068).
#include <algorithm>
#include <cstring>

#include "kernels/conv/cpu_own.h"
#include "kernels/device/cpu/bfloat16.h"
#include "kernels/device/cpu/cpu_layout.h"
#include "kernels/device/cpu/lanes.h"
#include "kernels/device/cpu/parallel.h"
#include "kernels/op_args.h"

namespace dp::kernels {
namespace {

constexpr std::int64_t kMostTaps = 7;  // that are summed in registers at once

// Adjacent channels that share a vector: `lanes` of them, from channel `first` on.
struct ChannelGroup {
  std::int64_t first, lanes;
};

std::vector<ChannelGroup> channel_groups(const ActivationView& x, const ActivationView& dy) {
  std::vector<ChannelGroup> groups;
  for (std::int64_t first = 0; first < x.c;) {
    const std::int64_t left = std::min(x.block - first % x.block, dy.block - first % dy.block);  // in these blocks
    const std::int64_t lanes = left >= kLanes ? kLanes : left >= 8 ? 8 : 1;
    groups.push_back({first, lanes});
    first += lanes;
  }
  return groups;
}

std::int64_t rounded_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

class DepthwiseBackwardWeights final : public HostOp {
 public:
  DepthwiseBackwardWeights(const TensorDesc& x, const TensorDesc& dy, const TensorDesc& dw, const Window& window,
                           int threads)
      : window_(window),
        x_(view_of(x)),
        dy_(view_of(dy)),
        groups_(channel_groups(x_, dy_)),
        places_(places_of(desc_of(dw.layout))),
        taps_(window.kernel.h * window.kernel.w),
        threads_(threads) {
    tensors_ = {x, dy, dw};
  }

  // The sums of a thread: [tap][channel], then those of the bias.
  std::size_t workspace_bytes() const override {
    return static_cast<std::size_t>(threads_ * (taps_ + 1) * kLanes) * sizeof(float);
  }
  std::string implementation() const override { return "own:depthwise"; }

  void execute(std::span<void* const> pointers, void* workspace) override {
    const auto args = args_of<Conv2dBackwardWeights>(pointers);
    tensors_[0].type == DType::bf16 ? run<BFloat16>(args, static_cast<float*>(workspace))
                                    : run<float>(args, static_cast<float*>(workspace));
  }

 private:
  template <typename T, typename Args>
  void run(const Args& args, float* workspace) const {
    const T *x = static_cast<const T*>(args.x), *dy = static_cast<const T*>(args.dy);
    float *dw = static_cast<float*>(args.dw), *db = static_cast<float*>(args.db);
    std::memset(dw, 0, tensors_[2].layout.bytes);
    // Each part is one row of the window for one group of channels, summed by one thread over the batch. So the bits do
    // not depend on the number of threads.
    const std::int64_t rows = window_.kernel.h, parts = rows * static_cast<std::int64_t>(groups_.size());
    parallel_ranges(threads_, parts, 1, [&](std::int64_t part, std::int64_t end, int thread) {
      float* const sums = workspace + thread * (taps_ + 1) * kLanes;
      while (part < end) {
        const ChannelGroup& group = groups_[static_cast<std::size_t>(part / rows)];
        const std::int64_t first_row = part % rows, end_row = std::min(rows, first_row + end - part);
        with_lanes(group.lanes,
                   [&](auto lanes) { sum_rows<decltype(lanes)>(x, dy, group.first, first_row, end_row, sums); });
        for (std::int64_t lane = 0; lane < std::min(group.lanes, x_.c - group.first); ++lane) {
          const std::int64_t channel = group.first + lane;
          for (std::int64_t tap = first_row * window_.kernel.w; tap < end_row * window_.kernel.w; ++tap)
            dw[places_[static_cast<std::size_t>(channel * taps_ + tap)]] = sums[tap * group.lanes + lane];
          if (db != nullptr && first_row == 0) db[channel] = sums[taps_ * group.lanes + lane];
        }
        part += end_row - first_row;
      }
    });
  }

  // Sets the sums of the window's rows [first_row, end_row), and of the bias with row 0.
  template <typename V, typename T>
  void sum_rows(const T* x, const T* dy, std::int64_t channel, std::int64_t first_row, std::int64_t end_row,
                float* sums) const {
    std::memset(sums, 0, static_cast<std::size_t>((taps_ + 1) * V::count) * sizeof(float));
    for (std::int64_t n = 0; n < x_.n; ++n) {
      const T* const image = x + x_.at(n, channel / x_.block) + channel % x_.block;
      const T* const gradient = dy + dy_.at(n, channel / dy_.block) + channel % dy_.block;
      for (std::int64_t row = first_row; row < end_row; ++row)
        for (std::int64_t column = 0; column < window_.kernel.w;) {
          float* const here = sums + (row * window_.kernel.w + column) * V::count;
          const std::int64_t left = window_.kernel.w - column;
          if (left >= kMostTaps)
            add_taps<V, kMostTaps>(image, gradient, row, column, here), column += kMostTaps;
          else if (left >= 5)
            add_taps<V, 5>(image, gradient, row, column, here), column += 5;
          else if (left >= 3)
            add_taps<V, 3>(image, gradient, row, column, here), column += 3;
          else
            add_taps<V, 1>(image, gradient, row, column, here), column += 1;
        }
      if (first_row == 0) add_bias<V>(gradient, sums + taps_ * V::count);
    }
  }

  // sums[tap][lane] += sum over the plane of x(row, column + tap) * dy, for `Taps` cells of a row of the window.
  template <typename V, std::int64_t Taps, typename T>
  void add_taps(const T* x, const T* dy, std::int64_t window_row, std::int64_t window_column, float* sums) const {
    const std::int64_t stride = window_.stride.w, dilation = window_.dilation.w;
    const std::int64_t step = stride * x_.stride_w, tap_step = dilation * x_.stride_w;
    // The columns of x that the first and the last tap read for output column 0. Output columns from inner_begin to
    // inner_end read no column outside x.
    const std::int64_t first_tap = window_column * dilation - window_.padding.w;
    const std::int64_t last_tap = first_tap + (Taps - 1) * dilation;
    const std::int64_t inner_begin = std::clamp<std::int64_t>(rounded_up(-first_tap, stride), 0, dy_.w);
    const std::int64_t inner_end = std::clamp<std::int64_t>(rounded_up(x_.w - last_tap, stride), inner_begin, dy_.w);
    typename V::Floats acc[Taps] = {};
    for (std::int64_t row = 0; row < dy_.h; ++row) {
      const std::int64_t in_row = row * window_.stride.h + window_row * window_.dilation.h - window_.padding.h;
      if (in_row < 0 || in_row >= x_.h) continue;
      const T* const from = x + in_row * x_.stride_h + first_tap * x_.stride_w;
      const T* const gradient = dy + row * dy_.stride_h;
      const auto edge = [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t column = begin; column < end; ++column) {
          const auto d = V::load(gradient + column * dy_.stride_w);
          for (std::int64_t tap = 0; tap < Taps; ++tap) {
            const std::int64_t in_column = column * stride + first_tap + tap * dilation;
            if (in_column >= 0 && in_column < x_.w) acc[tap] += V::load(from + column * step + tap * tap_step) * d;
          }
        }
      };
      edge(0, inner_begin);
      for (std::int64_t column = inner_begin; column < inner_end; ++column) {
        const auto d = V::load(gradient + column * dy_.stride_w);
        for (std::int64_t tap = 0; tap < Taps; ++tap) acc[tap] += V::load(from + column * step + tap * tap_step) * d;
      }
      edge(inner_end, dy_.w);
    }
    for (std::int64_t tap = 0; tap < Taps; ++tap)
      V::store(sums + tap * V::count, V::load(sums + tap * V::count) + acc[tap]);
  }

  template <typename V, typename T>
  void add_bias(const T* dy, float* sums) const {
    typename V::Floats acc = {};
    for (std::int64_t row = 0; row < dy_.h; ++row)
      for (std::int64_t column = 0; column < dy_.w; ++column)
        acc += V::load(dy + row * dy_.stride_h + column * dy_.stride_w);
    V::store(sums, V::load(sums) + acc);
  }

  const Window window_;
  const ActivationView x_, dy_;
  const std::vector<ChannelGroup> groups_;
  const std::vector<std::int64_t> places_;  // of dw: [channel][tap]
  const std::int64_t taps_;
  const int threads_;
};

}  // namespace

std::unique_ptr<HostOp> make_depthwise_backward_weights(const Conv2dBackwardWeights& d, const CpuOpOptions& options) {
  if (d.dw.shape[1] != 1 || d.dw.shape[0] != d.x.shape[1]) return nullptr;
  // In a row-major image the channels of a pixel are far apart, so the op requires blocks instead.
  const auto in_blocks = [](const TensorDesc& image) {
    if (!image.layout.any() && view_of(image).block > 1) return image;
    const auto tag = kLanes == 16 ? dnnl::memory::format_tag::nChw16c : dnnl::memory::format_tag::nChw8c;
    return resolved(image, DnnlDesc(dims_of(image.shape), dnnl_type(image.type), tag));
  };
  const TensorDesc x = in_blocks(d.x);
  const TensorDesc dy = d.dy.layout.any() ? in_layout_of(x, d.dy) : in_blocks(d.dy);
  return std::make_unique<DepthwiseBackwardWeights>(x, dy, resolved_plain(d.dw), d.window, options.threads);
}

}  // namespace dp::kernels
