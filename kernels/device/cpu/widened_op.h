// Bfloat16 ops by float32 ops, where oneDNN has no bfloat16 implementation: the operands are widened, the results
// rounded. Sums are in float32, as in bfloat16 ops.
#pragma once

#include <memory>
#include <vector>

#include "kernels/device/cpu/bfloat16.h"
#include "kernels/device/cpu/cpu_layout.h"
#include "kernels/device/cpu/cpu_op.h"
#include "kernels/op_args.h"

namespace dp::kernels {

inline bool is_widened(DType type, const CpuOpOptions& options) {
  return type == DType::bf16 && (options.emulate_bfloat16 || !has_bfloat16());
}

class WidenedOp final : public HostOp {
 public:
  struct Tensor {  // a bfloat16 argument
    TensorDesc desc;
    Position arg;
    bool output = false;
  };
  // `tensors`: those of this op; the first low.size() are those of `low`.
  WidenedOp(std::unique_ptr<HostOp> op, std::vector<Tensor> low, std::vector<TensorDesc> tensors, int threads);

  std::size_t workspace_bytes() const override { return places_.back() + op_->workspace_bytes(); }
  std::string implementation() const override { return "widened: " + op_->implementation(); }
  bool is_fallback() const override { return true; }
  void execute(std::span<void* const> args, void* workspace) override;

 private:
  const std::unique_ptr<HostOp> op_;
  const std::vector<Tensor> low_;
  std::vector<std::size_t> places_;  // in the workspace: the float32 copies, then the op's own
  const int threads_;
};

// A bfloat16 tensor of a descriptor, and its argument.
template <typename Desc>
struct LowTensor {
  TensorDesc Desc::*tensor;
  Position arg;
  bool output = false;
};

// `low`: the bfloat16 tensors, in the order of Op::tensors(); float32 tensors follow there.
template <typename Desc>
std::unique_ptr<HostOp> widened(const Desc& desc, const CpuOpOptions& options, std::vector<LowTensor<Desc>> low) {
  Desc wide = desc;
  for (const LowTensor<Desc>& one : low) {
    TensorDesc& tensor = wide.*one.tensor;
    tensor.type = DType::f32;
    if (!tensor.layout.any()) tensor.layout = make_layout(with_type(desc_of(tensor.layout), DType::f32), DType::f32);
  }
  CpuOpOptions direct = options;
  direct.direct_convolutions = true;
  std::unique_ptr<HostOp> op = make(wide, direct);
  std::vector<TensorDesc> tensors = op->tensors();
  std::vector<WidenedOp::Tensor> args;
  for (std::size_t i = 0; i < low.size(); ++i) {
    const DnnlDesc md = with_type(desc_of(tensors[i].layout), DType::bf16);
    if (!(make_layout(md, DType::f32) == tensors[i].layout)) {  // bfloat16 has no such order
      TensorDesc& tensor = wide.*low[i].tensor;
      tensor.layout = plain_cpu_layout(tensor.shape, DType::f32);
      return widened(wide, options, std::move(low));
    }
    tensors[i] = {tensors[i].shape, DType::bf16, make_layout(md, DType::bf16)};
    args.push_back({tensors[i], low[i].arg, low[i].output});
  }
  return std::make_unique<WidenedOp>(std::move(op), std::move(args), std::move(tensors), options.threads);
}

// The same for a convolution or linear layer: forward, data gradient or weight gradient.
template <typename Desc>
std::unique_ptr<HostOp> widened_layer(const Desc& desc, const CpuOpOptions& options) {
  constexpr auto p = positions<Desc>();
  if constexpr (requires { desc.y; })
    return widened<Desc>(desc, options, {{&Desc::x, p.x}, {&Desc::w, p.w}, {&Desc::y, p.y, true}});
  else if constexpr (requires { desc.dx; })
    return widened<Desc>(desc, options, {{&Desc::dy, p.dy}, {&Desc::w, p.w}, {&Desc::dx, p.dx, true}});
  else
    return widened<Desc>(desc, options, {{&Desc::x, p.x}, {&Desc::dy, p.dy}});
}

}  // namespace dp::kernels
