#include "kernels/conv/cpu_own.h"

#include <cstring>

#include "kernels/device/cpu/bfloat16.h"
#include "kernels/device/cpu/dnnl_op.h"
#include "kernels/device/cpu/parallel.h"
#include "kernels/op_args.h"

namespace dp::kernels {
namespace {

constexpr std::int64_t kBlockChannels = 16;

// oneDNN's weight layout for AMX, if `outputs` is not 0. A block has 16 pairs of input channels x `outputs` output
// channels x 2.
struct PairedLayout {
  std::int64_t outputs = 0;     // 0: another layout
  dnnl_compat::Dims strides{};  // of blocks, and of rows and columns

  explicit PairedLayout(const DnnlDesc& md) {
    const dnnl_compat::Blocking b = dnnl_compat::blocking_of(md);
    const bool pairs = b.known && b.inner_axes == std::vector<std::int64_t>{1, 0, 1} && b.inner_sizes[0] == 16 &&
                       b.inner_sizes[2] == 2 && b.inner_sizes[1] % kBlockChannels == 0;
    if (!pairs) return;
    outputs = b.inner_sizes[1];
    strides = b.strides;
  }
};

class FlippedBackwardData : public HostOp {
 public:
  template <typename PrimitiveDesc>
  FlippedBackwardData(const Conv2dBackwardData& d, const PrimitiveDesc& pd, const PairedLayout& layout, int threads)
      : call_(dnnl::convolution_forward(pd), pd.scratchpad_desc()),
        layout_(layout),
        in_(d.w.shape[1] / kBlockChannels),
        out_(d.w.shape[0] / kBlockChannels),
        kernel_(d.window.kernel.h),
        threads_(threads),
        weight_bytes_((pd.weights_desc().get_size() + 63) / 64 * 64),
        implementation_(std::string("flipped ") + pd.impl_info_str()) {
    tensors_ = {d.dy, d.w, d.dx};
    call_.add_input(DNNL_ARG_SRC, pd.src_desc());
    call_.add_input(DNNL_ARG_WEIGHTS, pd.weights_desc());
    call_.add_output(DNNL_ARG_DST, pd.dst_desc());
  }
  std::size_t workspace_bytes() const override { return weight_bytes_ + call_.scratchpad_bytes(); }
  std::string implementation() const override { return implementation_; }

  void execute(std::span<void* const> pointers, void* workspace) override {
    const auto args = args_of<Conv2dBackwardData>(pointers);
    flip(static_cast<const std::uint32_t*>(args.w), static_cast<std::uint32_t*>(workspace));
    void* const all[] = {args.dy, workspace, args.dx};
    call_.run(threads_, all, static_cast<char*>(workspace) + weight_bytes_);
  }

 private:
  // Writes the flipped convolution's weights. Its input channels are the layer's output channels and are copied in
  // pairs. `from` has blocks of 16 input x 16 output channels.
  void flip(const std::uint32_t* from, std::uint32_t* to) const {
    constexpr std::int64_t kPairs = kBlockChannels / 2, kUnits = kBlockChannels * kPairs;
    const std::int64_t taps = kernel_ * kernel_;
    parallel_ranges(threads_, out_ * in_, 1, [&](std::int64_t at, std::int64_t end) {
      for (; at < end; ++at) {
        const std::int64_t out = at / in_, in = at % in_, first = in * kBlockChannels;
        const std::int64_t block = first / layout_.outputs * layout_.strides[0] + out / 2 * layout_.strides[1];
        const std::int64_t inner = out % 2 * kPairs * layout_.outputs + first % layout_.outputs;
        for (std::int64_t tap = 0; tap < taps; ++tap) {
          const std::int64_t row = kernel_ - 1 - tap / kernel_, col = kernel_ - 1 - tap % kernel_;
          const std::uint32_t* src = from + (at * taps + tap) * kUnits;
          std::uint32_t* dst = to + (block + row * layout_.strides[2] + col * layout_.strides[3]) / 2 + inner;
          for (std::int64_t pair = 0; pair < kPairs; ++pair, dst += layout_.outputs)
            for (std::int64_t c = 0; c < kBlockChannels; ++c) dst[c] = src[c * kPairs + pair];
        }
      }
    });
  }

  DnnlCall call_;
  PairedLayout layout_;
  std::int64_t in_, out_, kernel_;  // blocks of channels of the layer
  int threads_;
  std::size_t weight_bytes_;
  std::string implementation_;
};

}  // namespace

std::unique_ptr<HostOp> make_flipped_backward_data(const Conv2dBackwardData& d, const CpuOpOptions& options) {
  const Shape& w = d.w.shape;
  const std::int64_t padding = d.window.kernel.h - 1 - d.window.padding.h;
  if (!has_amx() || d.dx.type != DType::bf16 || !is_plain(d.dx, d.w, d.window)) return nullptr;
  if (!(d.window.stride == 1) || padding < 0) return nullptr;
  if (w[0] % (2 * kBlockChannels) != 0 || w[1] % (2 * kBlockChannels) != 0) return nullptr;
  const DnnlDesc blocks(dims_of(w), dnnl::memory::data_type::bf16, dnnl::memory::format_tag::ABcd16b16a);
  const TensorDesc weights = resolved(d.w, blocks);
  if (!d.w.layout.any() && !(d.w.layout == weights.layout)) return nullptr;
  const dnnl_compat::ConvShape shape{{1, 1}, {padding, padding}, dnnl::algorithm::convolution_direct};
  const auto pd =
      dnnl_compat::conv_forward(dnnl_engine(), requested(d.dy), any_desc({w[1], w[0], w[2], w[3]}, DType::bf16),
                                DnnlDesc(), requested(d.dx), shape, op_attributes());
  const PairedLayout layout(pd.weights_desc());
  if (layout.outputs == 0 || w[1] % layout.outputs != 0) return nullptr;
  const Conv2dBackwardData resolved_desc{resolved(d.dy, pd.src_desc()), weights, resolved(d.dx, pd.dst_desc()),
                                         d.window};
  return std::make_unique<FlippedBackwardData>(resolved_desc, pd, layout, options.threads);
}

}  // namespace dp::kernels
