// Reorder. oneDNN reorders float32 and bfloat16. It has no float64, which is converted in row-major order before or
// after the reorder. float16 is converted only if the memory order stays the same.
#include <cstring>
#include <memory>
#include <optional>

#include "kernels/device/cpu/bfloat16.h"
#include "kernels/device/cpu/convert.h"
#include "kernels/device/cpu/dnnl_op.h"
#include "kernels/op_args.h"

namespace dp::kernels {
namespace {

// Images of float32 in nchw to bfloat16 in nhwc, which oneDNN reorders at 0.2 GB/s.
class ImagesToNhwc : public HostOp {
 public:
  ImagesToNhwc(const TensorDesc& src, const TensorDesc& dst, const CpuOpOptions& options)
      : images_(src.shape[0]), channels_(src.shape[1]), pixels_(src.shape[2] * src.shape[3]) {
    tensors_ = {src, dst};
    threads_ = threads_for(options.threads, static_cast<std::int64_t>(src.layout.bytes + dst.layout.bytes));
  }
  std::string implementation() const override { return "own:images"; }

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<Reorder>(pointers);
    const float* src = static_cast<const float*>(args.src);
    BFloat16* dst = static_cast<BFloat16*>(args.dst);
    parallel_ranges(threads_, images_ * pixels_, 16, [=, this](std::int64_t at, std::int64_t end) {
      for (; at < end; ++at) {
        const float* from = src + at / pixels_ * channels_ * pixels_ + at % pixels_;
        for (std::int64_t c = 0; c < channels_; ++c) dst[at * channels_ + c] = from_float<BFloat16>(from[c * pixels_]);
      }
    });
  }
  static bool fits(const TensorDesc& src, const TensorDesc& dst) {
    constexpr std::int64_t kFewChannels = 8;
    if (src.type != DType::f32 || dst.type != DType::bf16 || src.shape.rank() != 4 || src.shape[1] > kFewChannels)
      return false;
    const DnnlDesc nhwc(dims_of(dst.shape), dnnl::memory::data_type::bf16, dnnl::memory::format_tag::nhwc);
    return src.layout == plain_cpu_layout(src.shape, DType::f32) && dst.layout == make_layout(nhwc, DType::bf16);
  }

 private:
  std::int64_t images_, channels_, pixels_;
  int threads_ = 1;
};

class ReorderOp : public HostOp {
 public:
  ReorderOp(const Reorder& d, const CpuOpOptions& options) {
    tensors_ = {resolved_plain(d.src), resolved_plain(d.dst)};
    src_ = d.src.type, dst_ = d.dst.type;
    count_ = d.src.shape.numel();
    threads_ =
        threads_for(options.threads, static_cast<std::int64_t>(tensors_[0].layout.bytes + tensors_[1].layout.bytes));
    // The weights of a linear layer may be flat on one side, those of a convolution in groups may have the groups as an
    // axis: view both with the axes of the side that has more.
    DnnlDesc from = desc_of(tensors_[0].layout), to = desc_of(tensors_[1].layout);
    const auto from_dims = rank_dims(from), to_dims = rank_dims(to);
    if (from_dims.size() < to_dims.size()) from = from.reshape(to_dims);
    if (to_dims.size() < from_dims.size()) to = to.reshape(from_dims);
    same_order_ = make_layout(from, DType::f32) == make_layout(to, DType::f32);
    if (!same_order_ && (src_ == DType::f16 || dst_ == DType::f16))
      throw Error(ErrorCode::usage, std::string("reorder: ") + to_string(src_) + " to " + to_string(dst_) +
                                        " cannot change the layout on CPUs, from " + tensors_[0].layout.name + " to " +
                                        tensors_[1].layout.name + "; convert to float32 first");
    if (same_order_) {
      elements_ = static_cast<std::int64_t>(tensors_[0].layout.bytes / size_of(src_));
      return;
    }
    const DnnlDesc plain = plain_desc(rank_dims(from));
    if (src_ == DType::f64) require_plain(from, plain, tensors_[0]);
    if (dst_ == DType::f64) require_plain(to, plain, tensors_[1]);
    const dnnl::reorder::primitive_desc pd(dnnl_engine(), from, dnnl_engine(), to, op_attributes());
    implementation_ = pd.impl_info_str();
    call_.emplace(dnnl::reorder(pd), pd.scratchpad_desc());
    call_->add_input(DNNL_ARG_FROM, from);
    call_->add_output(DNNL_ARG_TO, to);
    if (src_ == DType::f64 || dst_ == DType::f64)
      converted_bytes_ = (static_cast<std::size_t>(count_) * sizeof(float) + 127) / 128 * 128;
  }
  std::size_t workspace_bytes() const override { return converted_bytes_ + (call_ ? call_->scratchpad_bytes() : 0); }
  std::string implementation() const override { return implementation_; }

  void execute(std::span<void* const> pointers, void* workspace) override {
    const auto args = args_of<Reorder>(pointers);
    const void* src = args.src;
    void* dst = args.dst;
    if (same_order_) return copy(src, dst);
    char* scratchpad = static_cast<char*>(workspace) + converted_bytes_;
    const auto reorder = [&](const void* from, void* to) {
      void* const both[] = {const_cast<void*>(from), to};
      call_->run(threads_, both, scratchpad);
    };
    if (src_ == DType::f64) {
      convert<double, float>(threads_, src, workspace, count_);
      reorder(workspace, dst);
    } else if (dst_ == DType::f64) {
      reorder(src, workspace);
      convert<float, double>(threads_, workspace, dst, count_);
    } else {
      reorder(src, dst);
    }
  }

 private:
  static dnnl::memory::dims rank_dims(const DnnlDesc& md) { return dnnl_compat::blocking_of(md).dims; }
  static void require_plain(const DnnlDesc& md, const DnnlDesc& plain, const TensorDesc& tensor) {
    if (!(make_layout(md, DType::f32) == make_layout(plain, DType::f32)))
      throw Error(ErrorCode::usage,
                  "reorder: float64 must be row-major if the layout changes, not " + tensor.layout.name);
  }
  // Padding is zero on both sides, hence it is copied like the rest.
  void copy(const void* src, void* dst) const {
    if (src_ == DType::f64 && dst_ == DType::f32) return convert<double, float>(threads_, src, dst, elements_);
    if (src_ == DType::f32 && dst_ == DType::f64) return convert<float, double>(threads_, src, dst, elements_);
    if (src_ == DType::f64) return convert<double, double>(threads_, src, dst, elements_);
    if (src_ == DType::bf16 && dst_ == DType::bf16) return convert<BFloat16, BFloat16>(threads_, src, dst, elements_);
    if (dst_ == DType::bf16) return convert<float, BFloat16>(threads_, src, dst, elements_);
    if (dst_ == DType::f16) return convert<float, Float16>(threads_, src, dst, elements_);
    if (src_ == DType::bf16) return convert<BFloat16, float>(threads_, src, dst, elements_);
    if (src_ == DType::f16) return convert<Float16, float>(threads_, src, dst, elements_);
    convert<float, float>(threads_, src, dst, elements_);
  }

  DType src_, dst_;
  std::int64_t count_ = 0, elements_ = 0;
  bool same_order_ = false;
  int threads_ = 1;
  std::size_t converted_bytes_ = 0;
  std::string implementation_ = "own:simd";
  std::optional<DnnlCall> call_;
};

}  // namespace

std::unique_ptr<HostOp> make(const Reorder& d, const CpuOpOptions& options) {
  const TensorDesc src = resolved_plain(d.src), dst = resolved_plain(d.dst);
  if (src.shape == dst.shape && ImagesToNhwc::fits(src, dst)) return std::make_unique<ImagesToNhwc>(src, dst, options);
  return std::make_unique<ReorderOp>(d, options);
}

}  // namespace dp::kernels
