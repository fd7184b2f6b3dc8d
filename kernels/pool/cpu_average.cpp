// Average pooling on CPUs: windows by oneDNN, whole images and adaptive pools by loops of our own.
#include <algorithm>
#include <memory>

#include "kernels/device/cpu/bfloat16.h"
#include "kernels/device/cpu/cpu_op.h"
#include "kernels/device/cpu/dnnl_op.h"
#include "kernels/device/cpu/lanes.h"
#include "kernels/device/cpu/parallel.h"
#include "kernels/device/cpu/widened_op.h"
#include "kernels/op_args.h"
#include "kernels/pool/cpu_plane.h"

namespace dp::kernels {
namespace {

// The mean of each channel of whole images, and its gradient. oneDNN has only reference loops for some of these
// gradients in bfloat16.
class GlobalPoolOp : public HostOp {
 public:
  std::string implementation() const override { return "own:simd"; }
  // The means of one block of channels, of each thread.
  std::size_t workspace_bytes() const override {
    return static_cast<std::size_t>(threads_ * large_.block) * sizeof(float);
  }

 protected:
  // Of one value a channel. The layout of the small side is row-major if it was any().
  GlobalPoolOp(const TensorDesc& large, const TensorDesc& small, int threads)
      : large_(view_of(large)),
        small_(view_of(small)),
        pixels_(large_.h * large_.w),
        threads_(threads_for(threads, static_cast<std::int64_t>(large.layout.bytes))) {}

  // Calls body(first element, sample, first channel, channels, means) for every block of channels of every sample.
  template <typename Body>
  void for_blocks(void* workspace, const Body& body) const {
    parallel_ranges(threads_, large_.n * large_.blocks, 1, [&](std::int64_t begin, std::int64_t end, int thread) {
      float* const means = static_cast<float*>(workspace) + thread * large_.block;
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t n = i / large_.blocks, block = i % large_.blocks, first = block * large_.block;
        body(large_.at(n, block), n, first, std::min(large_.block, large_.c - first), means);
      }
    });
  }
  // The place of a channel's mean.
  std::int64_t place(std::int64_t n, std::int64_t c) const { return small_.at(n, c / small_.block) + c % small_.block; }
  float inverse() const { return static_cast<float>(1 / static_cast<double>(pixels_)); }

  const ActivationView large_, small_;
  const std::int64_t pixels_;
  const int threads_;
};

class GlobalPoolForwardOp final : public GlobalPoolOp {
 public:
  GlobalPoolForwardOp(const TensorDesc& x, const TensorDesc& y, int threads) : GlobalPoolOp(x, y, threads) {
    tensors_ = {x, y};
  }

  void execute(std::span<void* const> pointers, void* workspace) override {
    const auto args = args_of<AvgPool2dForward>(pointers);
    with_element_type(tensors_[0].type, [&]<typename T>() {
      T* const y = static_cast<T*>(args.y);
      for_blocks(workspace,
                 [&](std::int64_t at, std::int64_t n, std::int64_t first, std::int64_t channels, float* means) {
                   const T* const x = static_cast<const T*>(args.x) + at;
                   large_.block == 1 ? sum_image(x, means) : sum_pixels(x, means);
                   for (std::int64_t c = 0; c < channels; ++c)
                     y[place(n, first + c)] = from_float<T>(means[c] * inverse());
                   if (first + channels == large_.c)
                     for (std::int64_t c = large_.c; c < small_.blocks * small_.block; ++c) y[place(n, c)] = T{};
                 });
    });
  }

 private:
  template <typename T>
  void sum_image(const T* x, float* mean) const {
    LaneSum sum;
    for_lanes_of(0, pixels_, [&](auto lanes, std::int64_t i) { sum.add(lanes.load(x + i)); });
    *mean = static_cast<float>(sum.total());
  }
  // Sums of at most 64 pixels are in float.
  template <typename T>
  void sum_pixels(const T* x, float* means) const {
    constexpr std::int64_t kChunk = 64;
    for_lanes_of(0, large_.block, [&](auto lanes, std::int64_t c) {
      using V = decltype(lanes);
      double sums[V::count] = {};
      for (std::int64_t begin = 0; begin < pixels_; begin += kChunk) {
        typename V::Floats sum{};
        for (std::int64_t p = begin; p < std::min(begin + kChunk, pixels_); ++p)
          sum += V::load(x + p * large_.block + c);
        for (int k = 0; k < V::count; ++k) sums[k] += static_cast<double>(sum[k]);
      }
      for (int k = 0; k < V::count; ++k) means[c + k] = static_cast<float>(sums[k]);
    });
  }
};

class GlobalPoolBackwardOp final : public GlobalPoolOp {
 public:
  GlobalPoolBackwardOp(const TensorDesc& dy, const TensorDesc& dx, int threads) : GlobalPoolOp(dx, dy, threads) {
    tensors_ = {dy, dx};
  }

  void execute(std::span<void* const> pointers, void* workspace) override {
    const auto args = args_of<AvgPool2dBackward>(pointers);
    with_element_type(tensors_[1].type, [&]<typename T>() {
      const T* const dy = static_cast<const T*>(args.dy);
      for_blocks(workspace,
                 [&](std::int64_t at, std::int64_t n, std::int64_t first, std::int64_t channels, float* means) {
                   T* const dx = static_cast<T*>(args.dx) + at;
                   std::fill_n(means, large_.block, 0.f);  // the padding of dx is zero
                   for (std::int64_t c = 0; c < channels; ++c) means[c] = to_float(dy[place(n, first + c)]) * inverse();
                   if (large_.block == 1) {
                     std::fill_n(dx, pixels_, from_float<T>(*means));
                     return;
                   }
                   for (std::int64_t p = 0; p < pixels_; ++p)
                     for_lanes_of(0, large_.block, [&](auto lanes, std::int64_t c) {
                       lanes.store(dx + p * large_.block + c, lanes.load(means + c));
                     });
                 });
    });
  }
};

// Adaptive average pools (adaptive_cells) and their gradient. Each thread computes whole planes.
class AdaptivePoolOp : public HostOp {
 public:
  std::string implementation() const override { return "own:simd"; }

 protected:
  AdaptivePoolOp(const TensorDesc& large, const TensorDesc& pooled, int threads)
      : views_(pool_views("adaptive_avg_pool2d", large, pooled)),
        threads_(threads_for(threads, static_cast<std::int64_t>(large.layout.bytes))) {}

  AdaptiveCells rows(std::int64_t at) const { return adaptive_cells(at, views_.large.h, views_.pooled.h); }
  AdaptiveCells cols(std::int64_t at) const { return adaptive_cells(at, views_.large.w, views_.pooled.w); }
  // The output rows, or columns, that read row, or column, `at` of the input.
  AdaptiveCells rows_over(std::int64_t at) const { return adaptive_cells(at, views_.pooled.h, views_.large.h); }
  AdaptiveCells cols_over(std::int64_t at) const { return adaptive_cells(at, views_.pooled.w, views_.large.w); }
  static float share(const AdaptiveCells& rows, const AdaptiveCells& cols) {
    return 1 / static_cast<float>((rows.end - rows.first) * (cols.end - cols.first));
  }

  // Calls body(lanes, first element of the plane in large, in pooled, channel of the block).
  template <typename Body>
  void for_planes(const Body& body) const {
    const ActivationView &large = views_.large, &pooled = views_.pooled;
    parallel_ranges(threads_, large.n * large.blocks, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t n = i / large.blocks, block = i % large.blocks;
        for_lanes_of(0, large.block,
                     [&](auto lanes, std::int64_t c) { body(lanes, large.at(n, block) + c, pooled.at(n, block) + c); });
      }
    });
  }

  const PoolViews views_;
  const int threads_;
};

class AdaptivePoolForwardOp final : public AdaptivePoolOp {
 public:
  AdaptivePoolForwardOp(const TensorDesc& x, const TensorDesc& y, int threads) : AdaptivePoolOp(x, y, threads) {
    tensors_ = {x, y};
  }

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<AvgPool2dForward>(pointers);
    with_element_type(tensors_[0].type, [&]<typename T>() {
      for_planes([&](auto lanes, std::int64_t from, std::int64_t to) {
        using V = decltype(lanes);
        const std::int64_t block = views_.large.block, width = views_.large.w;
        const T* const x = static_cast<const T*>(args.x) + from;
        T* y = static_cast<T*>(args.y) + to;
        for (std::int64_t i = 0; i < views_.pooled.h; ++i)
          for (std::int64_t j = 0; j < views_.pooled.w; ++j, y += block) {
            const AdaptiveCells in_rows = rows(i), in_cols = cols(j);
            typename V::Floats sum{};
            for (std::int64_t r = in_rows.first; r < in_rows.end; ++r)
              for (std::int64_t c = in_cols.first; c < in_cols.end; ++c) sum += V::load(x + (r * width + c) * block);
            V::store(y, sum * share(in_rows, in_cols));
          }
      });
    });
  }
};

class AdaptivePoolBackwardOp final : public AdaptivePoolOp {
 public:
  AdaptivePoolBackwardOp(const TensorDesc& dy, const TensorDesc& dx, int threads) : AdaptivePoolOp(dx, dy, threads) {
    tensors_ = {dy, dx};
  }

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<AvgPool2dBackward>(pointers);
    with_element_type(tensors_[1].type, [&]<typename T>() {
      for_planes([&](auto lanes, std::int64_t to, std::int64_t from) {
        using V = decltype(lanes);
        const std::int64_t block = views_.large.block, width = views_.pooled.w;
        const T* const dy = static_cast<const T*>(args.dy) + from;
        T* dx = static_cast<T*>(args.dx) + to;
        for (std::int64_t r = 0; r < views_.large.h; ++r)
          for (std::int64_t c = 0; c < views_.large.w; ++c, dx += block) {
            const AdaptiveCells out_rows = rows_over(r), out_cols = cols_over(c);
            typename V::Floats sum{};
            for (std::int64_t i = out_rows.first; i < out_rows.end; ++i)
              for (std::int64_t j = out_cols.first; j < out_cols.end; ++j)
                sum += V::load(dy + (i * width + j) * block) * share(rows(i), cols(j));
            V::store(dx, sum);
          }
      });
    });
  }
};

using dnnl_compat::PoolShape;

PoolShape shape_of(const Window& w) {
  return {{w.stride.h, w.stride.w}, {w.kernel.h, w.kernel.w}, {w.padding.h, w.padding.w}};
}

// oneDNN would add the gradients of overlapping windows in bfloat16.
bool is_wide(const TensorDesc& large, const CpuOpOptions& options) {
  return is_widened(large.type, options) || large.type == DType::bf16;
}

}  // namespace

std::unique_ptr<HostOp> make(const AvgPool2dForward& d, const CpuOpOptions& options) {
  const TensorDesc x = resolved_plain(d.x);
  if (d.adaptive && is_global(d.y))
    return std::make_unique<GlobalPoolForwardOp>(x, resolved_plain(d.y), options.threads);
  if (d.adaptive) return std::make_unique<AdaptivePoolForwardOp>(x, in_layout_of(x, d.y), options.threads);
  constexpr auto p = positions<AvgPool2dForward>();
  if (is_wide(d.x, options))
    return widened(d, options, {{&AvgPool2dForward::x, p.x}, {&AvgPool2dForward::y, p.y, true}});
  const TensorDesc y = in_layout_of(x, d.y);
  const auto pd = dnnl_compat::avg_pool_forward(dnnl_engine(), desc_of(x.layout), desc_of(y.layout), shape_of(d.window),
                                                op_attributes());
  auto op = std::make_unique<DnnlOp>(dnnl::pooling_forward(pd), pd, options.threads);
  op->input(DNNL_ARG_SRC, pd.src_desc()).output(DNNL_ARG_DST, pd.dst_desc()).tensors_are({x, y});
  return op;
}

std::unique_ptr<HostOp> make(const AvgPool2dBackward& d, const CpuOpOptions& options) {
  if (d.adaptive && is_global(d.dy))
    return std::make_unique<GlobalPoolBackwardOp>(resolved_plain(d.dy), resolved_plain(d.dx), options.threads);
  constexpr auto p = positions<AvgPool2dBackward>();
  if (!d.adaptive && is_wide(d.dx, options))
    return widened(d, options, {{&AvgPool2dBackward::dy, p.dy}, {&AvgPool2dBackward::dx, p.dx, true}});
  const TensorDesc dx = d.dx.layout.any() && !d.dy.layout.any() ? in_layout_of(d.dy, d.dx) : resolved_plain(d.dx);
  const TensorDesc dy = in_layout_of(dx, d.dy);
  if (d.adaptive) return std::make_unique<AdaptivePoolBackwardOp>(dy, dx, options.threads);
  const PoolShape shape = shape_of(d.window);
  const auto hint =
      dnnl_compat::avg_pool_forward(dnnl_engine(), desc_of(dx.layout), desc_of(dy.layout), shape, op_attributes());
  const auto pd = dnnl_compat::avg_pool_backward(dnnl_engine(), desc_of(dx.layout), desc_of(dy.layout), shape, hint,
                                                 op_attributes());
  auto op = std::make_unique<DnnlOp>(dnnl::pooling_backward(pd), pd, options.threads);
  op->input(DNNL_ARG_DIFF_DST, pd.diff_dst_desc()).output(DNNL_ARG_DIFF_SRC, pd.diff_src_desc()).tensors_are({dy, dx});
  return op;
}

}  // namespace dp::kernels
