// Reorder. oneDNN reorders float32. It has no float64, which is converted in row-major order before or after the
// reorder. 16-bit types are converted only if the memory order stays the same.
#include <cstring>
#include <memory>
#include <optional>
#include <type_traits>

#include "kernels/cpu/dnnl_compat.h"
#include "kernels/cpu/dnnl_op.h"
#include "kernels/cpu/parallel.h"
#include "kernels/low_float.h"
#include "kernels/op_args.h"

namespace dp::kernels {
namespace {

template <typename T>
constexpr bool kLow = std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>;

template <typename To, typename From>
inline To converted(From value) {
  if constexpr (kLow<To>)
    return from_float<To>(value);
  else if constexpr (kLow<From>)
    return to_float(value);
  else
    return static_cast<To>(value);
}

template <typename From, typename To>
void convert(int threads, const void* src, void* dst, std::int64_t count) {
  const From* from = static_cast<const From*>(src);
  To* to = static_cast<To*>(dst);
  parallel_ranges(threads, count, 16, [=](std::int64_t begin, std::int64_t end) {
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) to[i] = converted<To>(from[i]);
  });
}

class ReorderOp : public HostOp {
 public:
  ReorderOp(const Reorder& d, const CpuOpOptions& options) {
    tensors_ = {resolved_plain(d.src), resolved_plain(d.dst)};
    src_ = d.src.type, dst_ = d.dst.type;
    count_ = d.src.shape.numel();
    threads_ =
        threads_for(options.threads, static_cast<std::int64_t>(tensors_[0].layout.bytes + tensors_[1].layout.bytes));
    // The weights of a linear layer may be flat on one side: view both with the axes of the side that has more.
    DnnlDesc from = desc_of(tensors_[0].layout), to = desc_of(tensors_[1].layout);
    const auto from_dims = rank_dims(from), to_dims = rank_dims(to);
    if (from_dims.size() < to_dims.size()) from = from.reshape(to_dims);
    if (to_dims.size() < from_dims.size()) to = to.reshape(from_dims);
    same_order_ = make_layout(from, DType::f32) == make_layout(to, DType::f32);
    if (!same_order_ && (size_of(src_) == 2 || size_of(dst_) == 2))
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
    if (src_ != dst_) converted_bytes_ = (static_cast<std::size_t>(count_) * sizeof(float) + 127) / 128 * 128;
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
  return std::make_unique<ReorderOp>(d, options);
}

}  // namespace dp::kernels
