#include "kernels/op_args.h"
#include "kernels/reference/reference_op.h"

namespace dp::kernels::reference {
namespace {

class ReorderOp final : public ReferenceOp<Reorder> {
 public:
  explicit ReorderOp(const Reorder& desc) : ReferenceOp(desc, {}) {
    tensors_ = {resolve(desc.src), resolve(desc.dst)};
    require(desc.src.shape == desc.dst.shape, "source and destination have different shapes");
    require(is_float(desc.src.type) && is_float(desc.dst.type),
            "the element types must be float32, float64, bfloat16 or float16");
  }

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<Reorder>(pointers);
    if (desc_.src.type == DType::f32)
      copy_to(static_cast<const float*>(args.src), args.dst);
    else
      copy_to(static_cast<const double*>(args.src), args.dst);
  }

 private:
  static bool is_float(DType type) { return type == DType::f32 || type == DType::f64 || is_low(type); }

  template <typename From>
  void copy_to(const From* src, void* dst) const {
    if (desc_.dst.type == DType::f32)
      copy(src, static_cast<float*>(dst));
    else
      copy(src, static_cast<double*>(dst));
  }
  template <typename From, typename To>
  void copy(const From* src, To* dst) const {
    for (std::int64_t i = 0; i < desc_.src.shape.numel(); ++i) dst[i] = static_cast<To>(src[i]);
  }
};

}  // namespace

std::unique_ptr<HostOp> make(const Reorder& desc) { return std::make_unique<ReorderOp>(desc); }

}  // namespace dp::kernels::reference
